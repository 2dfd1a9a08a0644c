"""One sequence's way through a grammar: exact masks, exact skips, ends, special tokens, independence."""

import json
from typing import Any

import numpy as np
import pytest

from tests.worker.constraints.drawing import Drawer, allowed_ids, constraint_of
from tests.worker.constraints.random_schemas import SchemaMaker
from tests.worker.constraints.vocabularies import TOKENIZERS, byte_level, tokens_of
from worker.constraints.constraint import MAX_SKIPPED, GrammarConstraint
from worker.constraints.grammar import Kind
from worker.constraints.tokens import ConstrainedTokens
from worker.errors import ConstraintInvalid, ConstraintTooComplex
from worker.sequence import TokenNotAllowedError

NAMES = sorted(TOKENIZERS)
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
GRAMMARS: tuple[tuple[Kind, str], ...] = (
    ("json_schema", PERSON),
    ("json_object", ""),
    ("regex", r"(ab|cd)+e\d{3}"),
    ("lark", 'start: "in the " ("north" | "south") " and" ("!" | <|turn|>)'),
    ("lark", '%llguidance {"no_forcing": true}\nstart: "abc" "def"?'),
    ("choices", '["the thing", "the other", "therein", "an"]'),
)


def ids_of(text: str) -> list[int]:
    return byte_level().encode(text, False)


def taken(constraint: GrammarConstraint, text: str) -> GrammarConstraint:
    for token_id in ids_of(text):
        constraint.advance(token_id)
    return constraint


def tiny(kind: Kind, text: str) -> GrammarConstraint:
    return constraint_of(tokens_of("byte_level"), kind, text)


def check_skips(tokens: ConstrainedTokens, skipping: GrammarConstraint, stepping: GrammarConstraint, seed: int) -> None:
    """Walk twice: one skips, the other asks for every mask; both must be forced to the same tokens."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        for token_id in skipping.skip():
            assert allowed_ids(stepping.mask()) == [token_id], f"seed {seed}"
            stepping.advance(token_id)
        assert skipping.is_complete == stepping.is_complete, f"seed {seed}"
        allowed = allowed_ids(stepping.mask())
        assert allowed == allowed_ids(skipping.mask()), f"seed {seed}"
        drawn = int(rng.choice(allowed))
        if stepping.is_complete or drawn in tokens.eos_ids:
            break
        skipping.advance(drawn)
        stepping.advance(drawn)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_skipped_is_all_that_the_masks_allow(name: str, seed: int) -> None:
    tokens = tokens_of(name)
    kind, text = GRAMMARS[seed] if seed < len(GRAMMARS) else ("json_schema", json.dumps(SchemaMaker(seed).schema()))

    check_skips(tokens, constraint_of(tokens, kind, text), constraint_of(tokens, kind, text), seed)


class Hasty:
    """Skips a token too many wherever there is one."""

    def __init__(self, constraint: GrammarConstraint) -> None:
        self._constraint = constraint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._constraint, name)

    def skip(self) -> tuple[int, ...]:
        skipped = self._constraint.skip()
        more = min(allowed_ids(self._constraint.mask()))
        if not skipped or more in tokens_of("byte_level").eos_ids:
            return skipped
        self._constraint.advance(more)
        return (*skipped, more)


def test_a_token_that_is_skipped_and_not_forced_is_noticed() -> None:
    tokens = tokens_of("byte_level")
    hasty: Any = Hasty(tiny("json_schema", PERSON))

    with pytest.raises(AssertionError):
        check_skips(tokens, hasty, tiny("json_schema", PERSON), seed=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_mask_is_exactly_what_may_be_taken(seed: int) -> None:
    tokens = tokens_of("byte_level")
    kind, text = GRAMMARS[seed]
    rng = np.random.default_rng(seed)
    path: list[int] = []

    for _ in range(4):
        constraint = along(kind, text, path)
        allowed = allowed_ids(constraint.mask())
        assert takeable(kind, text, path) == allowed, f"seed {seed}"
        drawn = int(rng.choice(allowed))
        if constraint.is_complete or drawn in tokens.eos_ids:
            break
        path.append(drawn)


def along(kind: Kind, text: str, path: list[int]) -> GrammarConstraint:
    constraint = tiny(kind, text)
    for token_id in path:
        constraint.advance(token_id)
    return constraint


def takeable(kind: Kind, text: str, path: list[int]) -> list[int]:
    """Return the tokens that may be taken, with something to follow, and as the model would write what is forced."""
    if forced := along(kind, text, path).skip()[:1]:
        return list(forced)
    if along(kind, text, path).is_complete:
        return sorted(tokens_of("byte_level").eos_ids)
    return [token_id for token_id in range(tokens_of("byte_level").vocab_size) if leads_on(kind, text, path, token_id)]


def leads_on(kind: Kind, text: str, path: list[int], token_id: int) -> bool:
    constraint = along(kind, text, path)
    try:
        constraint.advance(token_id)
        constraint.mask()
    except (TokenNotAllowedError, ConstraintInvalid):
        return False
    return True


def test_an_end_is_allowed_where_the_grammar_is_satisfied_and_nowhere_else() -> None:
    tokenizer = byte_level()
    ends = [token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id)][:2]
    tokens = tokens_of("byte_level")
    two_ends = type(tokens)(
        tokens.vocabulary, tokens.vocab_size, frozenset(ends), tokens.special_ids, tokens.text_bits, tokens.bits(ends)
    )
    constraint = constraint_of(two_ends, "regex", "aa?")

    before = allowed_ids(constraint.mask())
    taken(constraint, "a")

    assert set(ends).isdisjoint(before)
    assert set(allowed_ids(constraint.mask())) == {*ends, *ids_of("a")}
    assert not constraint.is_complete


def test_it_is_complete_where_nothing_may_follow() -> None:
    constraint = taken(tiny("json_schema", PERSON), '{"name": "x", "age": 3')
    assert not constraint.is_complete

    taken(constraint, "}")

    assert constraint.is_complete
    assert constraint.skip() == ()
    assert set(allowed_ids(constraint.mask())) == set(tokens_of("byte_level").eos_ids)
    with pytest.raises(TokenNotAllowedError):
        constraint.advance(ids_of("x")[0])


def test_an_end_that_is_drawn_completes_it() -> None:
    constraint = taken(tiny("regex", "a+"), "aa")

    constraint.advance(min(tokens_of("byte_level").eos_ids))

    assert constraint.is_complete


@pytest.mark.parametrize("wrong", [ids_of("b")[0], min(tokens_of("byte_level").eos_ids), 10**6])
def test_a_token_that_may_not_follow_is_named(wrong: int) -> None:
    with pytest.raises(TokenNotAllowedError):
        tiny("regex", "aa").advance(wrong)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(?s:.*)"),
        ("lark", "start: A\nA: ~/abc/"),
        ("lark", 'start: A "b"\nA: ~/abc/'),
        ("lark", '%llguidance {"allow_invalid_utf8": true}\nstart: /[\\x00-\\xff]*/'),
        ("json_object", ""),
    ],
)
def test_no_grammar_lets_a_special_token_into_text(name: str, kind: Kind, text: str) -> None:
    tokens = tokens_of(name)
    constraint = constraint_of(tokens, kind, text)
    special = set(tokens.special_ids.values())

    allowed = set(allowed_ids(constraint.mask()))

    assert not allowed & (special - tokens.eos_ids)
    for token_id in sorted(special - allowed):
        with pytest.raises(TokenNotAllowedError):
            constraint.advance(token_id)


def test_a_special_token_is_allowed_where_the_grammar_names_it() -> None:
    tokens = tokens_of("byte_level")
    turn = tokens.special_ids["<|turn|>"]
    constraint = constraint_of(tokens, "lark", 'start: "a" <|turn|> "b"')

    assert constraint.skip() == (ids_of("a")[0], turn, ids_of("b")[0])
    assert constraint.is_complete


def test_a_named_end_is_allowed_in_the_middle() -> None:
    tokens = tokens_of("byte_level")
    end = tokens.special_ids["<|end|>"]

    assert constraint_of(tokens, "lark", 'start: "a" <|end|>').skip() == (ids_of("a")[0], end)


def test_skips_at_most_so_many_at_once_however_long_the_forced_text() -> None:
    constraint = tiny("choices", json.dumps(["x" * 5000]))
    total = 0

    while skipped := constraint.skip():
        assert len(skipped) <= MAX_SKIPPED
        total += len(skipped)

    assert total == 5000
    assert constraint.is_complete


def test_a_mask_is_of_its_own_and_changes_nothing() -> None:
    constraint = tiny("json_schema", PERSON)
    first = constraint.mask()

    first[:] = 0

    assert constraint.mask().any()


def test_masks_do_not_hang_on_who_else_goes_through_the_same_grammar() -> None:
    tokens = tokens_of("byte_level")
    alone, together, other = (constraint_of(tokens, "json_schema", PERSON) for _ in range(3))
    ids = ids_of(
        '{"name": "in the',
    )

    solo = [masked(alone, token_id) for token_id in ids]
    interleaved: list[list[int]] = []
    for token_id, stray in zip(ids, ids_of('{"name": "\\n\\n\\n'), strict=False):
        interleaved.append(masked(together, token_id))
        masked(other, stray)

    assert interleaved == solo[: len(interleaved)]


def masked(constraint: GrammarConstraint, token_id: int) -> list[int]:
    allowed = allowed_ids(constraint.mask())
    constraint.advance(token_id)
    return allowed


def test_the_work_for_a_token_is_bounded_and_ends_the_request_by_name() -> None:
    tokens = tokens_of("smollm2")
    letters = " | ".join(f'"{letter}"' for letter in "abcdefghijklmnopqrstuvwxyz")
    constraint = constraint_of(tokens, "lark", f'start: "the thing is: " {"letter " * 60}\nletter: {letters}')
    other = constraint_of(tokens, "regex", "[a-z]*")
    assert len(constraint.skip()) > 2

    with pytest.raises(ConstraintTooComplex) as caught:
        constraint.mask()

    assert caught.value.field == "spec.constraint.lark"
    assert not constraint.is_complete
    assert other.mask().any()


def test_a_failed_constraint_stays_failed() -> None:
    constraint = tiny("regex", "[^\\s\\S]")

    for _ in range(2):
        with pytest.raises(ConstraintInvalid):
            constraint.mask()


def test_drawing_with_and_without_skips_gives_texts_of_the_grammar() -> None:
    tokens = tokens_of("byte_level")
    drawer = Drawer(byte_level(), tokens, np.random.default_rng(3))
    choices = json.loads(GRAMMARS[-1][1])

    drawn = [drawer.text(drawer.draw(tiny(*GRAMMARS[-1]), skips=index % 2 == 1)) for index in range(20)]

    assert set(drawn) <= set(choices)
    assert len(set(drawn)) > 1
