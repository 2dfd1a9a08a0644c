"""What llguidance is given for a constraint."""

import json

import pytest

from worker.constraints.refusal import Reason, Refused
from worker.constraints.schema import SPACING
from worker.constraints.source import source_of

SPECIAL = {"<|turn|>": 7, "<call>": 8, "<token:9>": 9}


def lark_of(text: str) -> str:
    return json.loads(source_of("lark", text, SPECIAL).text)["grammars"][0]["lark_grammar"]


def test_a_special_token_that_is_named_is_kept_and_told() -> None:
    source = source_of("lark", 'start: <call> "x" <|turn|>', SPECIAL)

    assert '<call> \\"x\\" <|turn|>' in source.text
    assert source.special_tokens == {"<call>", "<|turn|>"}


def test_a_mark_that_is_no_special_token_becomes_text() -> None:
    source = source_of("lark", 'start: <tool_call> "x"', SPECIAL)

    assert '\\"<tool_call>\\" \\"x\\"' in source.text
    assert not source.special_tokens


@pytest.mark.parametrize("text", ['"<call>"', "/a<call>b/", "// <call>", "# <call>", r'"\"<call>"', r"/\/<call>/"])
def test_strings_patterns_and_comments_stay_as_they_are(text: str) -> None:
    source = source_of("lark", f"start: A\nA: {text}", SPECIAL)

    assert json.loads(source.text)["grammars"][0]["lark_grammar"].endswith(text)
    assert not source.special_tokens


def test_a_special_token_may_be_named_by_its_number() -> None:
    source = source_of("lark", "start: <[8]> <[9]>", SPECIAL)

    assert "<call> <token:9>" in source.text
    assert source.special_tokens == {"<call>", "<token:9>"}


@pytest.mark.parametrize("named", ["<[5]>", "<[*]>", "<[^1-2]>", "<[7-8]>", "<[7,8]>"])
def test_refuses_other_tokens_that_are_named_by_numbers(named: str) -> None:
    with pytest.raises(Refused, match="only a single special token"):
        source_of("lark", f"start: {named}", SPECIAL)


def test_a_schema_in_a_lark_grammar_is_reduced_and_spaced_like_any_other() -> None:
    text = lark_of('start: "a" %json {"title": "t", "type": "string"} "b"')

    assert text == 'start: "a" %json ' + json.dumps({"x-guidance": dict(SPACING), "type": "string"}) + ' "b"'


def test_a_schema_in_a_lark_grammar_is_refused_with_its_line() -> None:
    with pytest.raises(Refused, match=r"%json in line 2: the keyword `not` at # is not enforced") as caught:
        source_of("lark", 'start: a\na: %json {"not": {}}', SPECIAL)

    assert caught.value.reason is Reason.UNSUPPORTED


def test_half_a_character_is_refused() -> None:
    with pytest.raises(Refused, match="half a character"):
        source_of("json_schema", '{"properties": {"\\ud800": true}}', SPECIAL)
