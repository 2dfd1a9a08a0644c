"""Reasoning is free up to its budget, and what is behind it is the grammar's from the first token on."""

from collections.abc import Sequence

import numpy as np
import pytest

from worker.guide import Guide, MarkTokens
from worker.masks import packed
from worker.reasoning import Start
from worker.sequence import Constraint

from .marked_tokens import CLOSE, OPEN, SEVERAL, SINGLE, THINK, VOCAB_SIZE, letters

KINDS = pytest.mark.parametrize("tokens", [SINGLE, SEVERAL], ids=["single", "several"])


class Spelling(Constraint):
    """Allows the letters of one text, one after the other; those behind `num_free` are forced."""

    def __init__(self, text: str, num_free: int = 1000) -> None:
        self.left = letters(text)
        self.num_free = num_free
        self.taken: list[int] = []

    @property
    def is_complete(self) -> bool:
        return not self.left

    def advance(self, token_id: int) -> None:
        assert token_id == self.left.pop(0)
        self.taken.append(token_id)
        self.num_free -= 1

    def skip(self) -> tuple[int, ...]:
        if self.num_free > 0:
            return ()
        forced, self.left = tuple(self.left), []
        return forced

    def mask(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        allowed = np.zeros(VOCAB_SIZE, dtype=bool)
        allowed[self.left[:1]] = True
        return packed(allowed)


def allowed(guide: Guide) -> set[int] | None:
    mask = guide.mask()
    if mask is None:
        return None
    return {token_id for token_id in range(VOCAB_SIZE) if mask[token_id // 32] >> (token_id % 32) & 1}


def lead(guide: Guide, token_ids: Sequence[int]) -> list[int]:
    """Draw these tokens, and return them with those that are skipped between."""
    output = list(guide.skip())
    for token_id in token_ids:
        mask = allowed(guide)
        assert mask is None or token_id in mask
        guide.advance(token_id)
        output += [token_id, *guide.skip()]
    return output


@KINDS
def test_reasoning_is_free_and_the_grammar_begins_behind_it(tokens: MarkTokens):
    content = Spelling("ok")
    guide = Guide(tokens, Start.INSIDE, content=content)
    lead(guide, letters("why"))
    assert allowed(guide) is None
    lead(guide, tokens.closing())
    assert allowed(guide) == {ord("o")}
    assert content.taken == []
    lead(guide, letters("ok"))
    assert guide.is_complete


def test_a_token_that_closes_and_goes_on_is_not_allowed_where_the_mark_is_half_there():
    guide = Guide(SEVERAL, Start.INSIDE, content=Spelling("ok"))
    lead(guide, letters("a>"))
    assert allowed(guide) is None
    lead(guide, [210, 211])
    mask = allowed(guide)
    assert mask is not None
    assert set(range(VOCAB_SIZE)) - mask == {212, 213}
    lead(guide, [214])
    assert allowed(guide) == {ord("o")}


def test_without_a_grammar_such_a_token_may_come_and_ends_the_reasoning():
    guide = Guide(SEVERAL, Start.INSIDE, budget=6)
    assert lead(guide, [*letters("a"), 210, 211, 213, *letters("bcdefgh")]) == [97, 210, 211, 213, *letters("bcdefgh")]
    assert not guide.is_complete


@KINDS
def test_a_spent_budget_closes_the_reasoning(tokens: MarkTokens):
    guide = Guide(tokens, Start.INSIDE, budget=3, content=Spelling("ok"))
    assert lead(guide, letters("why")) == [*letters("why"), *tokens.closing()]
    assert allowed(guide) == {ord("o")}


@KINDS
def test_a_budget_of_nothing_closes_at_once(tokens: MarkTokens):
    assert Guide(tokens, Start.INSIDE, budget=0).skip() == tokens.closing()


def test_a_mark_that_is_half_there_is_only_completed():
    guide = Guide(SEVERAL, Start.INSIDE, budget=2)
    assert lead(guide, [*letters("a"), 210]) == [97, 210, 211, 214]


def test_a_mark_of_one_token_is_put_in_whole():
    guide = Guide(SINGLE, Start.INSIDE, budget=2)
    assert lead(guide, [*letters("a"), 210]) == [97, 210, CLOSE]


def test_a_budget_that_ends_within_a_character_waits_for_it():
    guide = Guide(SINGLE, Start.INSIDE, budget=1)
    assert lead(guide, [215]) == [215]
    assert lead(guide, [216]) == [216, CLOSE]


def test_a_character_that_never_ends_is_not_waited_for():
    assert lead(Guide(SINGLE, Start.INSIDE, budget=1), [215] * 4) == [215] * 4 + [CLOSE]


def test_what_the_grammar_forces_follows_the_mark_at_once():
    content = Spelling("ok!", num_free=0)
    guide = Guide(SINGLE, Start.INSIDE, budget=1, content=content)
    assert lead(guide, [97]) == [97, CLOSE, *letters("ok!")]
    assert guide.is_complete


@KINDS
def test_the_first_token_may_open_the_reasoning_or_begin_the_content(tokens: MarkTokens):
    opening = tokens.opening[0]
    content = Spelling("ok")
    assert allowed(Guide(tokens, Start.BEFORE, content=content)) == {ord("o"), opening}

    guide = Guide(tokens, Start.BEFORE, content=content)
    lead(guide, letters("o"))
    assert allowed(guide) == {ord("k")}

    guide = Guide(tokens, Start.BEFORE, budget=2, content=Spelling("ok"))
    assert lead(guide, [opening, *letters("ab")]) == [*tokens.opening, *letters("ab"), *tokens.closing()]
    assert allowed(guide) == {ord("o")}


def test_where_the_content_may_begin_like_the_mark_it_is_content():
    guide = Guide(SEVERAL, Start.BEFORE, content=Spelling("<a>"))
    lead(guide, letters("<a"))
    assert allowed(guide) == {214}


def test_no_budget_is_no_opening():
    guide = Guide(SINGLE, Start.BEFORE, budget=0, content=Spelling("ok"))
    assert allowed(guide) == {ord("o")}


def test_reasoning_that_is_opened_later_spends_the_budget_too():
    guide = Guide(SINGLE, Start.BEFORE, budget=2)
    opened = [97, OPEN, 98, 99]
    assert lead(guide, opened) == [*opened, CLOSE]
    assert lead(guide, [97, OPEN]) == [97, OPEN, CLOSE]


def test_an_opening_mark_that_no_tokens_write_is_not_offered():
    tokens = MarkTokens(THINK, lambda text: letters(text.upper()), lambda token: bytes([token]), {}, 128)
    assert tokens.opening == ()
    assert tokens.closing(3) == tokens.closing()


def test_a_space_that_the_tokenizer_puts_before_the_mark_is_left_out():
    tokens = MarkTokens(THINK, lambda text: letters(" " + text), SEVERAL.token_bytes, {}, VOCAB_SIZE)
    assert tokens.opening == tuple(letters("<think>"))


def test_no_text_ends_inside_reasoning_that_a_grammar_waits_behind():
    ends = frozenset({5, 9})
    tokens = MarkTokens(THINK, letters, SEVERAL.token_bytes, {}, VOCAB_SIZE, end_ids=ends)
    free, bound = Guide(tokens, Start.INSIDE), Guide(tokens, Start.INSIDE, content=Spelling("ab"))
    assert free.mask() is None
    for written in letters("so</thi"):
        mask = allowed(bound)
        assert mask is not None
        assert not mask & ends
        bound.advance(written)
