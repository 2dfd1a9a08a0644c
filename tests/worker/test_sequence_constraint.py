"""A sequence tells its constraint of what is drawn, takes what it skips, and ends with it."""

from dataclasses import replace
from typing import Any

import pytest

from worker.detokenizer import Detokenizer
from worker.dialects.call import Tool
from worker.dialects.choosing import dialect_named
from worker.events import FinishReason, SequenceFinished, TextDelta, ToolCallDelta
from worker.output import OutputFormat
from worker.sequence import Advance, Drawn, SamplingSettings, Sequence, StoppingSettings, TextRequest

EOS = 200


class Spells:
    """Allows one text and nothing else."""

    def __init__(self, text: str) -> None:
        self.left = list(text.encode())

    @property
    def is_complete(self) -> bool:
        return not self.left

    def advance(self, token_id: int) -> None:
        assert token_id == self.left.pop(0)

    def skip(self) -> tuple[int, ...]:
        skipped, self.left = tuple(self.left), []
        return skipped

    def mask(self) -> None:
        return None


def sequence(text: str, form: OutputFormat | None = None, max_context_tokens: int = 1000, **stopping: Any) -> Sequence:
    settings = replace(StoppingSettings(100, eos_token_ids=frozenset({EOS})), **stopping)
    request = TextRequest("r1", (1, 2, 3), SamplingSettings(), settings, form=form or OutputFormat())
    detokenizer = Detokenizer(lambda token_id: b"" if token_id >= EOS else bytes([token_id]))
    return Sequence(request, detokenizer, max_context_tokens, constraint=Spells(text))


def text_of(*advances: Advance) -> str:
    return "".join(event.text for advance in advances for event in advance.events if isinstance(event, TextDelta))


def test_the_end_of_the_constraint_is_the_end_of_the_sequence():
    subject = sequence("ab", stop_strings=("bc",))
    first, second = subject.advance(Drawn(97)), subject.advance(Drawn(98))
    assert first.finished is None
    assert second.finished == SequenceFinished(FinishReason.CONSTRAINT_COMPLETE)
    assert text_of(first, second) == "ab"


def test_it_ends_it_even_before_the_least_number_of_tokens():
    assert sequence("a", min_tokens=5).advance(Drawn(97)).finished == SequenceFinished(FinishReason.CONSTRAINT_COMPLETE)


def test_it_is_the_reason_at_the_limit_too():
    assert sequence("a", max_tokens=1).advance(Drawn(97)).finished == SequenceFinished(FinishReason.CONSTRAINT_COMPLETE)
    assert sequence("ab", max_tokens=1).advance(Drawn(97)).finished == SequenceFinished(FinishReason.MAX_TOKENS)


@pytest.mark.parametrize("ends", [{"stop_token_ids": frozenset({97})}, {"stop_strings": ("a",)}, {}])
def test_it_is_told_of_no_token_that_has_ended_the_sequence(ends: dict[str, Any]):
    subject = sequence("x", **ends)
    finished = subject.advance(Drawn(97 if ends else EOS)).finished
    assert finished is not None
    assert finished.reason in {FinishReason.STOP, FinishReason.EOS}


def test_what_it_skips_is_output_like_any_other_and_counted():
    subject = sequence("abcd")
    subject.advance(Drawn(97))
    assert subject.constraint is not None
    advance = subject.force(subject.constraint.skip())
    assert advance == Advance((TextDelta("bcd", (), 3),), SequenceFinished(FinishReason.CONSTRAINT_COMPLETE))
    assert (subject.output_ids, subject.num_forced) == ([97, 98, 99, 100], 3)


def test_skipped_tokens_end_at_the_limits_like_others():
    subject = sequence("", max_tokens=2)
    assert subject.force([97, 98, 99]) == Advance((TextDelta("ab", (), 2),), SequenceFinished(FinishReason.MAX_TOKENS))
    subject = sequence("", max_context_tokens=4)
    assert subject.force([97, 98]).finished == SequenceFinished(FinishReason.CONTEXT_LENGTH)
    subject = sequence("", stop_strings=("bc",))
    assert subject.force([97, 98, 99, 100]) == Advance(
        (TextDelta("a", (), 3),), SequenceFinished(FinishReason.STOP, stop_string="bc")
    )
    assert subject.output_ids == [97, 98, 99]


def test_nothing_to_skip_changes_nothing_unless_the_constraint_is_at_its_end():
    assert sequence("a").force(()) == Advance((), None)
    assert sequence("").force(()) == Advance((), SequenceFinished(FinishReason.CONSTRAINT_COMPLETE))


def test_a_call_that_the_constraint_ends_is_a_call():
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = {"f": Tool("f", "", {})}
    form = OutputFormat(is_content_verbatim=True, make_parser=lambda: dialect_named("hermes").parser(tools))
    subject = sequence(text, form)
    advance = subject.force(list(text.encode()))
    assert advance.finished is None
    subject = sequence("", form)
    advance = subject.force(list(text.encode()))
    assert advance.finished == SequenceFinished(FinishReason.TOOL_CALL)
    (call,) = (event for event in advance.events if isinstance(event, ToolCallDelta))
    assert (call.name, call.arguments_json) == ("f", "{}")
