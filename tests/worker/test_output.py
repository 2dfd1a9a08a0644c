"""Tokens of a sequence become reasoning, content and calls of tools, whatever tokens the text is cut into."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from worker.detokenizer import Detokenizer
from worker.dialects.call import Tool
from worker.dialects.choosing import dialect_named
from worker.events import Channel, FinishReason, SequenceFinished, TextDelta, TokenDetail, ToolCallDelta
from worker.output import Delta, OutputFormat
from worker.reasoning import ReasoningMarks, Start
from worker.sequence import Drawn, SamplingSettings, StoppingSettings, TextRequest
from worker.sequence import Sequence as Subject

THINK = ReasoningMarks("<think>", "</think>")
EOS = 1 << 20
TOOLS = {"f": Tool("f", "", {})}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXTS = {
    "reasoning and content": "<think>\nwhy 👋\n</think>\n\nyes",
    "a call": f"<think>why</think>{CALL}",
    "two calls in text": f"so {CALL}\nand {CALL} end",
    "a call in the reasoning": f"<think>maybe {CALL}</think>no",
    "a call that is cut off": 'yes <tool_call>\n{"name": "f", ',
    "half a mark": "yes <thi",
    "reasoning that does not end": "<think>why\n</thi",
}


class Letters:
    """Gives pieces of text ids as they come."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def ids(self, pieces: Sequence[bytes]) -> list[int]:
        self.texts += pieces
        return list(range(len(self.texts) - len(pieces), len(self.texts)))

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else self.texts[token_id]


@dataclass
class Told:
    """What a reader makes of a sequence."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list[ToolCallDelta])
    counts: dict[Channel, int] = field(default_factory=lambda: dict.fromkeys(Channel, 0))
    order: list[object] = field(default_factory=list[object])
    finished: SequenceFinished | None = None
    num_reasoning: int = 0
    num_tokens: int = 0

    def add(self, delta: Delta) -> None:
        if isinstance(delta, ToolCallDelta):
            self.calls.append(delta)
            self.order.append(delta.name)
            return
        self.counts[delta.channel] += delta.token_count
        if delta.channel is Channel.REASONING:
            self.reasoning += delta.text
        else:
            self.content += delta.text
        if delta.text and (not self.order or self.order[-1] is not delta.channel):
            self.order.append(delta.channel)

    @property
    def said(self) -> tuple[object, ...]:
        """What must not depend on the cuts."""
        return self.reasoning, self.content, self.calls, self.order, self.finished


def form(start: Start = Start.BEFORE, **fields: Any) -> OutputFormat:
    hermes = dialect_named("hermes")
    return OutputFormat(THINK, start, make_parser=lambda: hermes.parser(TOOLS), **fields)


def made(letters: Letters, output: OutputFormat | None = None, *, details: bool = False, **stopping: Any) -> Subject:
    settings = replace(StoppingSettings(1000, eos_token_ids=frozenset({EOS})), **stopping)
    request = TextRequest(
        "r1", (1,), SamplingSettings(), settings, token_details=details, form=output or form(), key="k"
    )
    return Subject(request, Detokenizer(letters.token_bytes), 2000)


def read(pieces: Sequence[bytes], make: Callable[..., Subject] = made, **options: Any) -> Told:
    letters = Letters()
    subject, told = make(letters, **options), Told()
    for token_id in [*letters.ids(pieces), EOS]:
        advance = subject.advance(Drawn(token_id))
        for event in advance.events:
            told.add(event)
        told.finished = advance.finished
        if told.finished is not None:
            break
    told.num_reasoning, told.num_tokens = subject.num_reasoning, len(subject.output_ids)
    return told


def cuts(raw: bytes) -> Iterator[list[bytes]]:
    """Cut a text in two at every place, and into single bytes."""
    yield [raw[at : at + 1] for at in range(len(raw))]
    for at in range(1, len(raw)):
        yield [raw[:at], raw[at:]]


@pytest.mark.parametrize("stop_strings", [(), ("<zzz", "</think>!")], ids=["plain", "stop strings"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_cut_says_the_same(name: str, stop_strings: tuple[str, ...]):
    raw = TEXTS[name].encode()
    whole = read([raw], stop_strings=stop_strings)
    for pieces in cuts(raw):
        told = read(pieces, stop_strings=stop_strings)
        assert told.said == whole.said
        assert told.counts[Channel.REASONING] == told.num_reasoning
        assert sum(told.counts.values()) == told.num_tokens


def test_reasoning_and_content_and_calls_come_apart():
    told = read([TEXTS["reasoning and content"].encode()])
    assert (told.reasoning, told.content, told.calls) == ("why 👋", "yes", [])
    assert told.finished == SequenceFinished(FinishReason.EOS, eos_token_id=EOS)

    told = read([TEXTS["two calls in text"].encode()])
    assert [(call.call_index, call.name, call.arguments_json) for call in told.calls] == [
        (0, "f", '{"a":1}'),
        (1, "f", '{"a":1}'),
    ]
    assert told.order == [Channel.CONTENT, "f", Channel.CONTENT, "f", Channel.CONTENT]
    assert told.finished is not None
    assert (told.finished.reason, told.finished.eos_token_id) == (FinishReason.TOOL_CALL, EOS)


def test_a_call_has_an_id_that_only_its_place_decides():
    ids = [call.id for call in read([TEXTS["two calls in text"].encode()]).calls]
    assert len(set(ids)) == 2
    assert all(len(each) == len("call_") + 24 and each.startswith("call_") for each in ids)
    assert ids == [call.id for call in read([bytes([byte]) for byte in TEXTS["two calls in text"].encode()]).calls]


def test_a_call_in_the_reasoning_is_reasoning():
    told = read([TEXTS["a call in the reasoning"].encode()])
    assert (told.reasoning, told.content, told.calls) == (f"maybe {CALL}", "no", [])


def test_a_call_that_is_cut_off_is_content_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        told = read([TEXTS["a call that is cut off"].encode()])
    assert told.content == TEXTS["a call that is cut off"]
    assert told.finished == SequenceFinished(FinishReason.EOS, eos_token_id=EOS)
    assert counted(caplog) == [(0, 1, 0)]


def counted(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int, int]]:
    """Return what the log says of calls: whole ones, malformed ones, and arguments of another kind."""
    lines = [vars(each) for each in caplog.records if each.getMessage() == "tool calls were not as declared"]
    assert all((line["request_id"], line["sequence"]) == ("r1", 0) for line in lines)
    return [(line["calls"], line["malformed"], line["mismatched"]) for line in lines]


def test_arguments_of_another_kind_are_kept_and_counted_in_the_log(caplog: pytest.LogCaptureFixture):
    count = {"type": "object", "properties": {"a": {"type": "integer"}}}
    hermes = dialect_named("hermes")
    declared = OutputFormat(make_parser=lambda: hermes.parser({"f": Tool("f", "", count)}))
    texts = [CALL.replace("1", "1.5"), CALL.replace("1", '"x"'), CALL, "<tool_call>{"]
    with caplog.at_level(logging.WARNING):
        told = read(["".join(texts).encode()], output=declared)
    assert [call.arguments_json for call in told.calls] == ['{"a":1.5}', '{"a":"x"}', '{"a":1}']
    assert counted(caplog) == [(3, 1, 2)]
    caplog.clear()
    read([CALL.encode()], output=declared)
    assert counted(caplog) == []


def test_the_limit_inside_the_reasoning_leaves_the_content_empty():
    told = read([b"w", b"h", b"y", b"!"], output=form(Start.INSIDE), max_tokens=3)
    assert (told.reasoning, told.content) == ("why", "")
    assert told.finished == SequenceFinished(FinishReason.MAX_TOKENS)
    assert (told.counts[Channel.REASONING], told.num_reasoning, told.num_tokens) == (3, 3, 3)


def test_a_call_before_the_limit_does_not_change_the_reason():
    told = read([CALL.encode(), b" and"], max_tokens=2)
    assert len(told.calls) == 1
    assert told.finished == SequenceFinished(FinishReason.MAX_TOKENS)


def test_held_text_goes_through_the_channels_at_the_end():
    told = read([b"why </", b"th"], output=form(Start.INSIDE), stop_strings=("</think>\nstop",))
    assert (told.reasoning, told.content) == ("why </th", "")
    told = read([b"why</think>\nst"], output=form(Start.INSIDE), stop_strings=("</think>\nstop",))
    assert (told.reasoning, told.content) == ("why", "st")


def test_a_stop_string_that_is_shown_goes_through_the_channels_too():
    told = read([b"why </think>"], output=form(Start.INSIDE), stop_strings=("</think>",), include_stop_in_output=True)
    assert (told.reasoning, told.content) == ("why ", "")
    assert told.finished == SequenceFinished(FinishReason.STOP, stop_string="</think>")


def test_a_mark_that_is_a_special_token_is_seen_where_it_is_shown():
    for shown, reasoning, content in [({EOS + 1: b"</think>"}, "ab", "cd"), ({}, "abcd", "")]:
        letters = Letters()
        ids = letters.ids([b"ab", b"cd"])
        settings = StoppingSettings(max_tokens=3)
        request = TextRequest("r1", (1,), SamplingSettings(), settings, form=form(Start.INSIDE, shown=shown))
        hidden = {EOS + 1: b""}

        def token_bytes(token_id: int, hidden: dict[int, bytes] = hidden, letters: Letters = letters) -> bytes:
            return hidden[token_id] if token_id in hidden else letters.token_bytes(token_id)

        subject, told = Subject(request, Detokenizer(token_bytes, shown=shown), 2000), Told()
        for token_id in (ids[0], EOS + 1, ids[1]):
            for event in subject.advance(Drawn(token_id)).events:
                told.add(event)
        assert (told.reasoning, told.content) == (reasoning, content)


def test_details_of_a_token_go_with_the_channel_that_it_begins_in():
    letters = Letters()
    subject = made(letters, form(Start.INSIDE), details=True)
    deltas: list[TextDelta] = []
    for token_id in letters.ids([b"why", b"</thi", b"nk>yes", b"!"]):
        deltas += [event for event in subject.advance(Drawn(token_id)).events if isinstance(event, TextDelta)]
    assert [(delta.channel, delta.text, [token.id for token in delta.tokens]) for delta in deltas] == [
        (Channel.REASONING, "why", [0]),
        (Channel.REASONING, "", [1]),
        (Channel.REASONING, "", [2]),
        (Channel.CONTENT, "yes", []),
        (Channel.CONTENT, "!", [3]),
    ]
    assert deltas[0].tokens == (TokenDetail(0, b"why"),)


def test_tokens_of_a_call_are_counted_before_it():
    letters = Letters()
    subject = made(letters)
    events: list[Delta] = []
    for token_id in letters.ids([CALL[:9].encode(), CALL[9:].encode()]):
        events += subject.advance(Drawn(token_id)).events
    assert [type(event) for event in events] == [TextDelta, ToolCallDelta]
    assert isinstance(events[0], TextDelta)
    assert (events[0].text, events[0].token_count) == ("", 2)


# Reported of Rapid-MLX as 579, and of omlx as 2457.


def test_a_call_of_mistral_has_one_name_one_id_and_no_mark_in_the_content_for_every_cut():
    mistral = dialect_named("mistral")
    output = OutputFormat(make_parser=lambda: mistral.parser({"read": Tool("read", "", {})}))
    raw = b'[TOOL_CALLS]read[ARGS]{"path":"a.txt"}'
    whole = read([raw], output=output)
    (call,) = whole.calls
    assert (call.call_index, call.name, call.arguments_json) == (0, "read", '{"path":"a.txt"}')
    assert (whole.content, whole.reasoning) == ("", "")
    for pieces in cuts(raw):
        assert read(pieces, output=output).said == whole.said


@pytest.mark.parametrize("start", [Start.INSIDE, Start.BEFORE])
def test_a_limit_inside_the_reasoning_tells_it_once_and_counts_it_once(start: Start):
    opening = [] if start is Start.INSIDE else [b"<think>"]
    told = read([*opening, b"so", b" it", b" is", b" not"], output=form(start), max_tokens=3 + len(opening))
    assert (told.reasoning, told.content, told.calls) == ("so it is", "", [])
    assert told.finished == SequenceFinished(FinishReason.MAX_TOKENS)
    num_tokens = 3 + len(opening)
    assert told.counts == {Channel.CONTENT: 0, Channel.REASONING: num_tokens}
    assert (told.num_reasoning, told.num_tokens) == (num_tokens, num_tokens)


# Random outputs in random tokens.

SHARDS = ("<think>", "</think>", CALL, "<tool_call>", "</tool_call>", "\n", "{", "a", "é👋", "<", "</", "stop", "sto")


def differs(make: Callable[..., Subject], seed: int) -> bool:
    """Say whether a random text says something else when it comes in random tokens, or tokens are lost."""
    rng = random.Random(seed)
    start, stops = rng.choice(list(Start)), rng.choice([(), ("stop", "</think>\n")])
    raw = "".join(rng.choice(SHARDS) for _ in range(rng.randrange(1, 9))).encode()
    places = sorted(rng.choices(range(len(raw) + 1), k=rng.randrange(1, 9)))
    pieces = [raw[left:right] for left, right in zip([0, *places], [*places, len(raw)], strict=True)]
    options: dict[str, Any] = {"output": form(start), "stop_strings": stops}
    whole, cut = (read(each, make, **options) for each in ([raw], pieces))
    is_counted = sum(cut.counts.values()) == cut.num_tokens and cut.counts[Channel.REASONING] == cut.num_reasoning
    return whole.said != cut.said or not is_counted


def test_random_outputs_say_the_same_in_whatever_tokens_they_come():
    seeds = [seed for seed in range(1500) if differs(made, seed)]
    assert not seeds, f"seeds {seeds}"


class Forgetful(Subject):
    """Loses what a token has in a second part."""

    def advance(self, drawn: Drawn):
        advance = super().advance(drawn)
        return type(advance)(advance.events[:1], advance.finished)


def test_the_random_outputs_catch_a_sequence_that_loses_parts():
    def forgetful(letters: Letters, output: OutputFormat, **stopping: Any) -> Subject:
        proper = made(letters, output, **stopping)
        return Forgetful(proper.request, Detokenizer(letters.token_bytes), 2000)

    assert sum(differs(forgetful, seed) for seed in range(200)) > 10
