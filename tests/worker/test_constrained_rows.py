"""Sixteen rows of a real model under as many constraints: each output fits, and is what its row says alone."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.constrained_engine import ConstrainedEngine, constrained_engine
from tests.support.sixteen import sixteen

CASES = sixteen()
MAX_TOKENS = 400

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[ConstrainedEngine]:
    async with constrained_engine(len(CASES)) as running:
        yield running


@pytest.mark.parametrize("seed", [0, 7000])
async def test_every_row_of_a_mixed_batch_fits_and_says_what_it_says_alone(
    engine: ConstrainedEngine, seed: int
) -> None:
    compiled = [await engine.compile(case.constraint) for case in CASES]
    asked = [
        engine.asking(case, seed + index, grammar, max_tokens=MAX_TOKENS)
        for index, (case, grammar) in enumerate(zip(CASES, compiled, strict=True))
    ]

    together = await engine.answers(asked)
    alone = [(await engine.answers([each]))[0] for each in asked]

    assert [case.name for case, answer in zip(CASES, together, strict=True) if not case.fits(answer.text)] == []
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert [answer.reason for answer in together] == [answer.reason for answer in alone]
    assert any(answer.usage.forced_tokens for answer in together)


async def test_rows_without_a_constraint_say_what_they_say_alone_beside_those_with(engine: ConstrainedEngine) -> None:
    compiled = [await engine.compile(case.constraint) for case in CASES]
    asked = [
        engine.asking(case, index, None if index % 2 else grammar, max_tokens=40)
        for index, (case, grammar) in enumerate(zip(CASES, compiled, strict=True))
    ]

    together = await engine.answers(asked)
    alone = await engine.answers(asked[1::2][:3])

    assert [answer.token_ids for answer in together[1::2][:3]] == [answer.token_ids for answer in alone]


async def test_what_does_not_fit_is_noticed(engine: ConstrainedEngine) -> None:
    free = await engine.answers([engine.asking(case, 3, None, max_tokens=20) for case in CASES])

    assert [case.name for case, answer in zip(CASES, free, strict=True) if case.fits(answer.text)] == []
