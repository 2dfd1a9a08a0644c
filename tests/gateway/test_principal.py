"""What a caller may do and see."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller_errors import ModelForbidden, ScopeMissing
from gateway.principal import ANYONE, NOBODY, SCOPES, Principal, acting_for, caller


def one(*scopes: str, patterns: tuple[str, ...] = ("*",)) -> Principal:
    return Principal("ci", "ci", frozenset(scopes), patterns)


def test_a_scope_that_is_missing_is_named() -> None:
    with pytest.raises(ScopeMissing) as caught:
        one("generate").check_scope("embed")
    assert caught.value.scope == "embed"


def test_who_has_a_scope_may_and_who_needs_none_may() -> None:
    one("generate").check_scope("generate")
    one("generate").check_scope("")


@pytest.mark.parametrize("scope", SCOPES)
def test_an_administrator_may_do_everything(scope: str) -> None:
    one("admin").check_scope(scope)


@pytest.mark.parametrize(
    ("pattern", "name", "is_allowed"),
    [
        ("*", "org/model", True),
        ("qwen*", "qwen3-4b", True),
        ("qwen*", "org/qwen3", False),
        ("org/*", "org/model", True),
        ("org/*", "organisation/model", False),
        ("*-4bit", "org/model-4bit", True),
        ("a.c", "abc", False),
        ("a.c", "a.c", True),
        ("model", "model-b", False),
        ("model", "my-model", False),
        ("m*l*", "model", True),
        ("[a-z]*", "model", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("**", "model", True),
        ("a*b*b", "ab", False),
        ("a*" * 90 + "b", "a" * 200, False),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_does(pattern: str, name: str, *, is_allowed: bool) -> None:
    assert one(patterns=(pattern,)).may_use((name,)) is is_allowed


@given(pattern=st.text("ab*", max_size=8), name=st.text("ab", max_size=10))
def test_a_pattern_means_what_a_regular_expression_would(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert one(patterns=(pattern,)).may_use((name,)) is (re.fullmatch(expression, name) is not None)


def test_a_model_is_refused_whether_it_is_there_or_not() -> None:
    who = one("generate", patterns=("mine",))
    for names in ((), ("other", "alias")):
        with pytest.raises(ModelForbidden) as caught:
            who.check_model("other", names)
        assert str(caught.value) == "The caller may not use a model named other."


def test_any_name_of_a_model_lets_its_caller_in() -> None:
    one("generate", patterns=("alias",)).check_model("model", ("model", "alias"))
    one("generate", patterns=("model",)).check_model("alias", ("model", "alias"))


def test_without_tokens_everybody_may_do_everything() -> None:
    assert caller() is ANYONE
    assert (ANYONE.sees_all, ANYONE.is_admin) == (True, True)


def test_nobody_sees_nothing() -> None:
    assert not NOBODY.may_use(("model",))


async def test_a_caller_holds_for_its_task_and_those_that_it_starts() -> None:
    async def told() -> str:
        await asyncio.sleep(0)
        return caller().name

    outside = asyncio.create_task(told())
    with acting_for(one("generate")):
        inside = asyncio.create_task(told())
        assert caller().name == "ci"
    assert (await outside, await inside, caller().name) == ("", "ci", "")
