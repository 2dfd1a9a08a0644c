"""Whatever the dialect and wherever the text is cut, the same calls and texts come out."""

import codecs
import json
import time

import pytest

from worker.dialects.call import ToolCall
from worker.dialects.choosing import DIALECTS, dialect_named
from worker.stops import StopMatcher, Stopped

from .transcripts import FIND, HI, TOOLS, TRANSCRIPTS, Transcript, joined, parsed

each_transcript = pytest.mark.parametrize(
    "transcript", TRANSCRIPTS, ids=lambda each: f"{each.dialect}: {each.text[:40]}"
)


@each_transcript
def test_a_transcript_comes_to_its_pieces(transcript: Transcript) -> None:
    parser = transcript.parser()
    assert parsed(parser, [transcript.text]) == list(transcript.pieces)
    assert parser.num_malformed == transcript.num_malformed
    assert parser.num_mismatched == 0


@each_transcript
def test_no_cut_between_two_characters_changes_anything(transcript: Transcript) -> None:
    text = transcript.text
    for cut in range(len(text) + 1):
        parser = transcript.parser()
        assert parsed(parser, [text[:cut], text[cut:]]) == list(transcript.pieces), text[:cut]
        assert parser.num_malformed == transcript.num_malformed
    assert parsed(transcript.parser(), list(text)) == list(transcript.pieces)


@each_transcript
def test_no_cut_between_two_bytes_changes_anything(transcript: Transcript) -> None:
    body = transcript.text.encode()
    for cut in range(len(body) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")()
        parts = [decoder.decode(body[:cut]), decoder.decode(body[cut:], final=True)]
        assert parsed(transcript.parser(), parts) == list(transcript.pieces)


def test_every_dialect_has_transcripts_with_and_without_sense() -> None:
    for dialect in DIALECTS:
        own = [each for each in TRANSCRIPTS if each.dialect == dialect.name]
        assert len(own) >= 4
        assert any(isinstance(piece, ToolCall) for each in own for piece in each.pieces)


@pytest.mark.parametrize(
    ("dialect", "text", "shown"),
    [
        ("hermes", "a <", ["a"]),
        ("hermes", "a <b", ["a", " <b"]),
        ("hermes", "a <tool_call>\n", ["a"]),
        ("hermes", "a <tool_call>\nx", ["a", " <tool_call>\nx"]),
        ("llama3_json", '{"na', []),
        ("llama3_json", '{"no', ['{"no']),
        ("llama3_pythonic", "[no", []),
        ("llama3_pythonic", "[note", []),
        ("llama3_pythonic", "[note ", ["[note"]),
        ("gemma4", "a <|tool_call>call", ["a"]),
        ("gemma4", "a <|tool_call>cell", ["a", " <|tool_call>cell"]),
    ],
)
def test_only_what_may_yet_be_a_call_is_held_back(dialect: str, text: str, shown: list[str]) -> None:
    parser = dialect_named(dialect).parser(TOOLS)
    assert joined([piece for character in text for piece in parser.add(character)]) == joined(shown)


@pytest.mark.parametrize("transcript", [each for each in TRANSCRIPTS if each.pieces[-1:] in {(FIND,), (HI,)}])
def test_a_call_comes_out_with_its_last_character(transcript: Transcript) -> None:
    parser = transcript.parser()
    pieces = [parser.add(character) for character in transcript.text.rstrip()]
    assert isinstance(pieces[-1][-1], ToolCall)
    assert parser.finish() == []


def test_text_that_a_stop_string_held_back_still_completes_a_call() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    stops, parser = StopMatcher(("}</tool_call> and more",)), dialect_named("hermes").parser(TOOLS)
    pieces: list[str | ToolCall] = []
    for character in text:
        sent = stops.add(character)
        assert not isinstance(sent, Stopped)
        pieces += parser.add(sent)
    assert stops.held == "}</tool_call>"
    assert pieces == []
    assert [*parser.add(stops.finish()), *parser.finish()] == [HI]


@pytest.mark.parametrize("count", [0, 1, 64])
def test_white_space_that_touches_a_call_belongs_to_it(count: int) -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    text = f"a{' ' * count}{call}{' ' * 1000}{call}{' ' * 1000}b "
    assert parsed(dialect_named("hermes").parser(TOOLS), list(text)) == ["a", HI, HI, "b "]


def test_white_space_far_before_a_call_is_content() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parser = dialect_named("hermes").parser(TOOLS)
    pieces = joined([piece for character in " " * 1000 for piece in parser.add(character)])
    assert pieces == [" " * (1000 - 64)]
    assert parsed(parser, [call]) == [HI]


BODIES = {
    "hermes": '<tool_call>{"name": "read", "arguments": {"path": "%s"}}</tool_call>',
    "qwen3_coder": "<tool_call><function=read><parameter=path>%s</parameter></function></tool_call>",
    "llama3_json": '{"name": "read", "parameters": {"path": "%s"}}',
    "llama3_pythonic": '[read(path="%s")]',
    "mistral": '[TOOL_CALLS]read[ARGS]{"path": "%s"}',
    "mistral_array": '[TOOL_CALLS][{"name": "read", "arguments": {"path": "%s"}}]',
    "gemma4": '<|tool_call>call:read{path:<|"|>%s<|"|>}<tool_call|>',
    "glm": "<tool_call>read<arg_key>path</arg_key><arg_value>%s</arg_value></tool_call>",
    "glm_inline": "<tool_call>read<arg_key>path</arg_key><arg_value>%s</arg_value></tool_call>",
    "minicpm": '<|tool_call_start|>```python\nread(path="%s")```<|tool_call_end|>',
    "minicpm5": '<function name="read"><param name="path">%s</param></function>',
}
each_body = pytest.mark.parametrize("dialect", BODIES)


@each_body
def test_a_megabyte_of_argument_costs_time_in_proportion(dialect: str) -> None:
    value = "<a {b [c 'd " * 85_000
    text = BODIES[dialect] % value
    started = time.process_time()
    pieces = parsed(dialect_named(dialect).parser(TOOLS), [text[at : at + 5] for at in range(0, len(text), 5)])
    assert time.process_time() - started < 8  # a second or so; many minutes where each piece costs all before it
    assert len(pieces) == 1
    assert isinstance(pieces[0], ToolCall)
    assert json.loads(pieces[0].arguments_json) == {"path": value}


@each_body
def test_thousands_of_calls_in_one_piece_cost_time_in_proportion(dialect: str) -> None:
    call = BODIES[dialect] % "a.txt"
    started = time.process_time()
    pieces = dialect_named(dialect).parser(TOOLS).add(call * 10_000)
    assert time.process_time() - started < 5
    assert pieces == [ToolCall("read", '{"path":"a.txt"}')] * 10_000


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_marks_without_sense_cost_time_in_proportion(dialect: object) -> None:
    name = str(getattr(dialect, "name", ""))
    text = "".join(dialect_named(name).marks) * 10_000 + "{[(\"'" * 50_000
    started = time.process_time()
    assert joined(parsed(dialect_named(name).parser(TOOLS), [text])) == [text]
    assert time.process_time() - started < 5


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_what_is_nested_too_deeply_is_no_call(opening: str) -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": ' + opening * 100_000
    parser = dialect_named("hermes").parser(TOOLS)
    assert parsed(parser, [text]) == [text]
    assert parser.num_malformed == 1


@pytest.mark.parametrize(
    "arguments", ['{"a": NaN}', '{"a": 01}', '{"a": 1,}', "[1]", '"x"', '{"a": tru}', '{"a" 1}', '{"a": Infinity}']
)
def test_what_is_no_json_object_makes_no_call(arguments: str) -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    parser = dialect_named("hermes").parser(TOOLS)
    assert parsed(parser, [text]) == [text]
    assert parser.num_malformed == 1


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"a": 1, "b": 2, "a": 3}', '{"a":3,"b":2}'),
        ('{"a": 12345678901234567890.10e+400}', '{"a":12345678901234567890.10e+400}'),
        (r'{"a": "\ud800", "b": "\ud83d\udc4b"}', r'{"a":"\ud800","b":"👋"}'),
        ('{"a": "two\nlines"}', r'{"a":"two\nlines"}'),
        (r'"{\"a\": 1}"', '{"a":1}'),
        ("null", "{}"),
    ],
)
def test_arguments_come_out_as_they_were_meant(written: str, kept: str) -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {written}}}</tool_call>'
    assert parsed(dialect_named("hermes").parser(TOOLS), [text]) == [ToolCall("now", kept)]
