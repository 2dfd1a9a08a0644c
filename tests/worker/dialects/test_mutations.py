"""Ten thousand damaged transcripts: no exception, no lost text, no difference between cuts; defects are seen."""

import random
from collections.abc import Callable
from typing import cast

import pytest

from worker.dialects.choosing import DIALECTS
from worker.dialects.dialect import Dialect
from worker.dialects.parsing import CallParser, Piece

from .mutations import check, mutated
from .transcripts import TOOLS

ROUNDS = 1000
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def run(make: Callable[[], CallParser], name: str, seed: int, rounds: int = ROUNDS) -> int:
    """Check so many damaged transcripts, and return how many of them still held calls."""
    source = random.Random(seed)
    num_calls = 0
    for index in range(rounds):
        text = mutated(source, name)
        try:
            check(make, source, text)
        except Exception as error:
            raise AssertionError(f"seed {seed}, round {index}, {name}: {text!r}") from error
        num_calls += any(not isinstance(piece, str) for piece in make().add(text))
    return num_calls


def maker(dialect: Dialect, kind: type[CallParser] = CallParser) -> Callable[[], CallParser]:
    def make() -> CallParser:
        sound = cast("CallParser", dialect.parser(TOOLS))
        return kind(sound._syntax, TOOLS)

    return make


@each_dialect
def test_damage_neither_raises_nor_loses_text_nor_depends_on_cuts(dialect: Dialect) -> None:
    num_calls = run(maker(dialect), dialect.name, seed=20_250_615)
    assert ROUNDS // 10 < num_calls < ROUNDS  # neither harmless nor hopeless


class Forgetful(CallParser):
    """Loses what a rejected call began with."""

    def _reject(self, pieces: list[Piece]) -> None:
        super()._reject(pieces)
        pieces[:] = [Piece(piece.text[:-1], piece.calls, piece.is_content) for piece in pieces]


class Hasty(CallParser):
    """Decides at the end of a piece what the next one could still change."""

    def pieces(self, text: str) -> list[Piece]:
        ended, self._reader.is_ended = self._reader.is_ended, True
        pieces = super().pieces(text)
        self._reader.is_ended = ended
        return pieces


class Hungry(CallParser):
    """Takes white space for part of a call that is not."""

    def _put(self, text: str, pieces: list[Piece]) -> None:
        kept = text.rstrip()
        super()._put(kept, pieces)
        pieces.append(Piece(text[len(kept) :]))


class Doubling(CallParser):
    """Counts a call again that was cut."""

    def add(self, text: str) -> list[object]:  # pyright: ignore[reportIncompatibleMethodOverride]
        pieces = super().add(text)
        return [*pieces, *(piece for piece in pieces[-1:] if not isinstance(piece, str))]


@pytest.mark.parametrize("defect", [Forgetful, Hasty, Hungry, Doubling])
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4"])
def test_a_defect_is_seen(defect: type[CallParser], name: str) -> None:
    dialect = next(each for each in DIALECTS if each.name == name)
    with pytest.raises(AssertionError, match="seed 7, round"):
        run(maker(dialect, defect), name, seed=7)
