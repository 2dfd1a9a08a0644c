"""The prefix cache and guesses ahead are taken as asked for, or refused by their fields."""

import pytest
from pomona.v1 import generation_pb2 as pb

from worker.errors import InvalidField, UnsupportedOption
from worker.shortcuts import MAX_CACHE_SALT_BYTES, MAX_DRAFT_TOKENS, Shortcuts, read_shortcuts


def speculation(**fields: object) -> pb.GenerationSpec:
    return pb.GenerationSpec(speculation=pb.SpeculationOptions(**fields))  # pyright: ignore[reportArgumentType]


def test_a_request_that_says_nothing_shares_prompts_and_guesses_nothing() -> None:
    assert read_shortcuts(pb.GenerationSpec()) == Shortcuts(
        bypass_prefix_cache=False, cache_salt="", max_draft_tokens=0
    )


def test_cache_options_are_taken_over() -> None:
    salt = "\N{LATIN SMALL LETTER E WITH ACUTE}" * (MAX_CACHE_SALT_BYTES // 2)
    asked = pb.GenerationSpec(cache=pb.CacheOptions(bypass_prefix_cache=True, cache_salt=salt))
    assert read_shortcuts(asked) == Shortcuts(bypass_prefix_cache=True, cache_salt=salt)


def test_a_salt_has_a_bound_of_bytes() -> None:
    salt = "x" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * (MAX_CACHE_SALT_BYTES // 2)
    with pytest.raises(InvalidField, match=r"spec\.cache\.cache_salt: at most 128 bytes"):
        read_shortcuts(pb.GenerationSpec(cache=pb.CacheOptions(cache_salt=salt)))


@pytest.mark.parametrize(
    ("asked", "num_tokens"),
    [
        (speculation(enabled=True), MAX_DRAFT_TOKENS),
        (speculation(enabled=True, max_draft_tokens=1), 1),
        (speculation(max_draft_tokens=MAX_DRAFT_TOKENS), MAX_DRAFT_TOKENS),
        (speculation(max_draft_tokens=0), 0),
        (speculation(enabled=False), 0),
        (speculation(enabled=False, max_draft_tokens=0), 0),
    ],
)
def test_guesses_are_made_for_those_who_ask(asked: pb.GenerationSpec, num_tokens: int) -> None:
    assert read_shortcuts(asked).max_draft_tokens == num_tokens


@pytest.mark.parametrize(
    "asked",
    [
        speculation(enabled=False, max_draft_tokens=1),
        speculation(enabled=True, max_draft_tokens=0),
        speculation(max_draft_tokens=MAX_DRAFT_TOKENS + 1),
    ],
)
def test_guesses_that_contradict_themselves_or_their_bound_are_refused(asked: pb.GenerationSpec) -> None:
    with pytest.raises(InvalidField) as raised:
        read_shortcuts(asked)
    assert raised.value.field == "spec.speculation.max_draft_tokens"


def test_a_model_that_cannot_guess_says_so() -> None:
    with pytest.raises(UnsupportedOption) as raised:
        read_shortcuts(speculation(enabled=True), max_draft_tokens=0)
    assert raised.value.field == "spec.speculation"
    assert read_shortcuts(speculation(enabled=False), max_draft_tokens=0) == Shortcuts()
