"""What a tokenizer's decoder makes of one token, where that does not depend on the tokens beside it.

Two families: byte-level (each character of a token stands for a byte; GPT-2 and what follows it) and SentencePiece
style (`▁` stands for a space, `<0xHH>` for a byte; Llama 2, Mistral, Gemma).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import Tokenizer as RawTokenizer

from models.checkpoint.errors import CheckpointRejected

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_SENTENCEPIECE = [_REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]


def byte_characters() -> dict[str, int]:
    """Return which byte each character of a byte-level token stands for.

    The printable characters of Latin-1 stand for themselves; the other 68 bytes, in order, have the characters from
    U+0100. Source: OpenAI's GPT-2, `bytes_to_unicode` of encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class Decoder:
    """The rule by which a token's text becomes bytes.

    Attributes:
        characters: the byte of each character, for a byte-level tokenizer; None for SentencePiece style.
        strips_leading_space: whether one space at the very start of a text is dropped.
    """

    characters: Mapping[str, int] | None
    strips_leading_space: bool

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a token adds to a text, a space at the very start not yet dropped."""
        if self.characters is None:
            match = _BYTE_TOKEN.fullmatch(token)
            return bytes.fromhex(match[1]) if match else token.replace("▁", " ").encode("utf-8")
        try:
            return bytes([self.characters[character] for character in token])
        except KeyError:
            # An added token is plain text, which may use characters outside the byte alphabet.
            return token.encode("utf-8")


def read_decoder(raw: RawTokenizer, file: str) -> Decoder:
    """Return the rule of a tokenizer's decoder.

    Raises:
        CheckpointRejected: it is of neither family.
    """
    state: dict[str, Any] = json.loads(raw.decoder.__getstate__()) if raw.decoder is not None else {}
    steps = _steps(state)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Decoder(byte_characters(), strips_leading_space=False)
    if steps[:3] == _SENTENCEPIECE and steps[3:] in ([], [_STRIP]):
        return Decoder(None, strips_leading_space=len(steps) > len(_SENTENCEPIECE))
    words = ", ".join(map(str, kinds)) or "none"
    raise CheckpointRejected(
        f"({words}) is neither byte-level nor SentencePiece style, which are what this build reads",
        file=file,
        key="decoder",
    )


def _steps(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    if state.get("type") != "Sequence":
        return [dict(state)] if state else []
    return cast("list[dict[str, Any]]", state["decoders"])
