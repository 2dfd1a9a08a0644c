"""What grammars may cost together: heavy ones share a budget, and light ones are never held up."""

import gc

import pytest

from tests.worker.constraints.hostile import all_hostile
from tests.worker.constraints.vocabularies import tokens_of
from worker.constraints.budget import FREE_COST_S, Budget
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.grammar import Grammar
from worker.errors import ConstraintBusy

MANY_BYTES = next(hostile.text for hostile in all_hostile() if hostile.name == "100,000 forced bytes")


def test_those_that_are_heavy_share_what_there_is() -> None:
    budget = Budget(max_cost_s=1.0)
    budget.take(0.6)
    budget.take(0.3)
    with pytest.raises(ConstraintBusy):
        budget.take(0.2)
    budget.give_back(0.6)
    budget.take(0.2)


def test_one_alone_may_be_as_heavy_as_it_is() -> None:
    budget = Budget(max_cost_s=1.0)
    budget.take(5.0)
    with pytest.raises(ConstraintBusy):
        budget.take(FREE_COST_S * 2)
    budget.give_back(5.0)
    budget.take(5.0)


def test_those_that_are_light_always_come() -> None:
    budget = Budget(max_cost_s=1.0)
    budget.take(5.0)
    for _ in range(100):
        budget.take(FREE_COST_S)
        budget.give_back(FREE_COST_S)


async def test_a_grammar_counts_for_each_sequence_until_nobody_holds_it() -> None:
    compiler = GrammarCompiler(tokens_of("byte_level"), budget=Budget(max_cost_s=2 * FREE_COST_S))
    heavy, light = Grammar("regex", MANY_BYTES, "p"), Grammar("regex", "a+", "p")
    try:
        first = await compiler.compile(heavy, 30, num_sequences=4)
        with pytest.raises(ConstraintBusy):
            await compiler.compile(heavy, 30, num_sequences=4)
        await compiler.compile(light, 30, num_sequences=16)
        assert first.start().skip()
        del first
        gc.collect()
        await compiler.compile(heavy, 30, num_sequences=4)
    finally:
        await compiler.close()
