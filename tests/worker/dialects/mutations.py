"""Transcripts that were damaged at random, and what must hold for every one of them."""

import json
import random
from collections.abc import Callable

from worker.dialects.parsing import CallParser, Piece

from .transcripts import TRANSCRIPTS, joined

SPACES = " \t\r\n"
NOISE = [
    *"{}[]()<>\"'\\,:=;|` \n\r\t09.-aé👋\x00\u2028",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<function=",
    "</function>",
    "</parameter>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "</param>",
    "]]>",
    "```",
    "</arg_value>",
    '{"name": "',
    "1e999",
    "\\ud800",
    "null",
    " " * 70,
    "x" * 70,
    "y" * 300,
]


def mutated(source: random.Random, dialect: str) -> str:
    """Return a transcript of the dialect after some random edits of its bytes, splices and truncations."""
    own = [each.text for each in TRANSCRIPTS if each.dialect == dialect]
    text = source.choice(own)
    for _ in range(source.randint(1, 4)):
        at = source.randint(0, len(text))
        end = min(len(text), at + source.randint(0, 8))
        match source.randrange(6):
            case 0:
                text = text[:at] + source.choice(NOISE) + text[at:]
            case 1:
                text = text[:at] + text[end:]
            case 2:
                other = source.choice(own if source.random() < 0.8 else [each.text for each in TRANSCRIPTS])
                text = text[:at] + other[source.randint(0, len(other)) :]
            case 3:
                text = text[:at] if source.random() < 0.3 else text + source.choice(own)
            case 4:
                text = text[:end] + text[at:end] * source.randint(1, 3) + text[end:]
            case _:
                body = bytearray(text.encode() or b" ")
                body[source.randrange(len(body))] = source.randrange(256)
                text = body.decode(errors="replace")
    return text


def cut(source: random.Random, text: str) -> list[str]:
    """Cut a text at random."""
    borders = sorted(source.randint(0, len(text)) for _ in range(source.randint(0, 12)))
    return [text[start:end] for start, end in zip([0, *borders], [*borders, len(text)], strict=True)]


def check(make: Callable[[], CallParser], source: random.Random, text: str) -> None:
    """Say what must hold.

    The pieces are the whole text; how it is cut changes nothing; what is neither content nor white space is calls,
    which mean the same when they stand alone; and arguments are objects of JSON.
    """
    parser, fresh = make(), make()
    whole = [*parser.pieces(text), *parser.last_pieces()]
    assert "".join(piece.text for piece in whole) == text
    parts = [piece for part in cut(source, text) for piece in fresh.add(part)] + fresh.finish()
    shown = [each for piece in whole for each in (*piece.calls, *([piece.text] if piece.is_content else []))]
    assert joined(parts) == joined(shown)
    assert (fresh.num_malformed, fresh.num_mismatched) == (parser.num_malformed, parser.num_mismatched)
    for piece in whole:
        assert piece.is_content or piece.calls or not piece.text.strip(SPACES)
        check_calls(piece, make())


def check_calls(piece: Piece, alone: CallParser) -> None:
    for call in piece.calls:
        assert call.name
        assert isinstance(json.loads(call.arguments_json), dict)
        call.arguments_json.encode()
    if piece.calls:
        again = [*alone.add(piece.text.lstrip(SPACES + ";")), *alone.finish()]
        assert again == list(piece.calls)
