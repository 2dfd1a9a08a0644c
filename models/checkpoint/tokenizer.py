"""Text to token ids, and the exact bytes that each token adds to a text.

A text is decoded token by token elsewhere, so what a token adds must not depend on its neighbours. That holds for the
two families of decoders known here; any other is refused by name when the tokenizer is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from models.checkpoint.decoder import read_decoder
from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, inside, parse_object, read_bytes

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_UNREADABLE = "is no tokenizer that this build can read"
_MAX_ID_DIGITS = 8


class EncodeError(Exception):
    """Raised when the tokenizer fails on a text, such as one that its regular expressions take too long for."""


class Tokenizer:
    """A tokenizer with its special tokens.

    Attributes:
        eos_token_ids: every id that the tokenizer itself says ends a text.
        bos_token: text of the begin-of-text token, None where there is none.
        eos_token: text of the main end-of-text token, None where there is none.
        strips_leading_space: whether one space at the very start of a decoded text is no part of it
            (SentencePiece style: every word is written with its space before it).
        vocab_size: one more than the highest id.
    """

    def __init__(
        self,
        raw: RawTokenizer,
        *,
        file: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """Take over a finished tokenizer.

        Args:
            raw: the tokenizer; its added tokens are complete.
            file: base name of the file that it comes from, for errors.
            bos_token: text of the begin-of-text token.
            eos_token: text of the main end-of-text token.
            eos_token_ids: ids that end a text, beside that of `eos_token`.

        Raises:
            CheckpointRejected: its decoder is of another kind, or `eos_token` is no token.
        """
        self._raw = raw
        self._decoder = read_decoder(raw, file)
        self.strips_leading_space = self._decoder.strips_leading_space
        self.bos_token = bos_token
        self.eos_token = eos_token
        ids = set(eos_token_ids)
        if eos_token is not None:
            ids.add(_token_id(raw, eos_token, "eos_token", file))
        self.eos_token_ids = frozenset(ids)
        added = raw.get_added_tokens_decoder()
        special = {token_id for token_id, token in added.items() if token.special}
        self._special_ids = frozenset(special | ids)
        self.vocab_size = 1 + max(raw.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`; special tokens written out in it become their ids.

        Args:
            text: any text.
            add_special_tokens: whether to add what the tokenizer puts around a text (begin-of-text, ...).

        Raises:
            EncodeError: the tokenizers library fails on this text.
        """
        try:
            return self._raw.encode(text, add_special_tokens=add_special_tokens).ids
        except MemoryError:
            raise
        except BaseException as error:
            # The library raises plain Exceptions, and panics where a regular expression gives up.
            if not isinstance(error, Exception) and not _is_panic(error):
                raise
            raise EncodeError("the tokenizer fails on this text") from None

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes that a token adds to a text.

        Nothing for a special token and for an id that is no token (models pad their vocabulary). They need not be
        whole characters.
        """
        token = None if token_id in self._special_ids else self._raw.id_to_token(token_id)
        return b"" if token is None else self._decoder.token_bytes(token)

    def special_bytes(self, token_id: int) -> bytes:
        """Return the text of a special token as UTF-8; nothing for any other id."""
        token = self._raw.id_to_token(token_id) if token_id in self._special_ids else None
        return b"" if token is None else token.encode("utf-8")

    def is_special(self, token_id: int) -> bool:
        """Whether this id is control, not text."""
        return token_id in self._special_ids


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json and, where there is one, tokenizer_config.json.

    Raises:
        CheckpointMissing: there is no tokenizer.json.
        CheckpointCorrupt: a file is not what it should be, or they contradict each other.
        CheckpointRejected: a decoder that this build does not read.
    """
    content = read_bytes(inside(folder, TOKENIZER_FILE, named_by=TOKENIZER_FILE), MAX_TOKENIZER_BYTES)
    raw = parse_tokenizer(content, TOKENIZER_FILE)
    config = read_tokenizer_config(folder)
    _add_flagged_tokens(raw, config)
    bos, eos = (_token_text(config, key) for key in ("bos_token", "eos_token"))
    if bos is not None:
        _token_id(raw, bos, "bos_token", TOKENIZER_CONFIG_FILE)
    if eos is not None:
        _token_id(raw, eos, "eos_token", TOKENIZER_CONFIG_FILE)
    return Tokenizer(raw, file=TOKENIZER_FILE, bos_token=bos, eos_token=eos)


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; a folder without one has an empty one.

    Raises:
        CheckpointCorrupt: it is no JSON object.
    """
    if not (folder / TOKENIZER_CONFIG_FILE).exists():
        return {}
    path = inside(folder, TOKENIZER_CONFIG_FILE, named_by=TOKENIZER_CONFIG_FILE)
    return parse_object(read_bytes(path, MAX_JSON_BYTES), TOKENIZER_CONFIG_FILE)


def parse_tokenizer(content: bytes, file: str) -> RawTokenizer:
    """Parse the JSON of a tokenizer.

    Raises:
        CheckpointCorrupt: the tokenizers library does not accept it.
    """
    return guarded(lambda: RawTokenizer.from_buffer(content), file)


def guarded(build: Callable[[], RawTokenizer], file: str) -> RawTokenizer:
    """Run a builder of the tokenizers library, which answers bad input with ValueError or a Rust panic.

    Raises:
        CheckpointCorrupt: the library does not accept the input.
    """
    try:
        return build()
    except ValueError as error:
        raise CheckpointCorrupt(_UNREADABLE, file=file) from error
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise CheckpointCorrupt(_UNREADABLE, file=file) from None


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up; such an error is no Exception, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


def add_tokens(raw: RawTokenizer, tokens: list[AddedToken]) -> None:
    """Add tokens that are looked for in a text before anything else; each keeps its id where it already has one."""
    raw.add_tokens(tokens)  # pyright: ignore[reportUnknownMemberType]


def _add_flagged_tokens(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
    """Make special what only tokenizer_config.json calls so (`added_tokens_decoder`)."""
    listed: object = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    known = raw.get_added_tokens_decoder()
    for key, entry in cast("dict[str, object]", listed).items():
        fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
        content, place = fields.get("content"), f"added_tokens_decoder.{key}"
        if not key.isdecimal() or len(key) > _MAX_ID_DIGITS or not _is_text(content):
            raise CheckpointCorrupt("describes no token", file=TOKENIZER_CONFIG_FILE, key=place)
        token_id, special = int(key), fields.get("special") is True
        if token_id not in known or (special and not known[token_id].special):
            flags = {name: fields.get(name) is True for name in ("single_word", "lstrip", "rstrip", "normalized")}
            token = AddedToken(content, special=special, **flags)
            add_tokens(raw, [token])
        if raw.token_to_id(content) != token_id:
            raise CheckpointCorrupt(f"is not what {TOKENIZER_FILE} says", file=TOKENIZER_CONFIG_FILE, key=place)


def _token_text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("content")
    if value is None or value == "":
        return None
    if not _is_text(value):
        raise CheckpointCorrupt("is no token's text", file=TOKENIZER_CONFIG_FILE, key=key)
    return value


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it is some text of whole characters; JSON can also write halves of them."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= character <= "\udfff" for character in value)


def _token_id(raw: RawTokenizer, text: str, key: str, file: str) -> int:
    token_id = raw.token_to_id(text)
    if token_id is None:
        raise CheckpointCorrupt("is no token of the tokenizer", file=file, key=key)
    return token_id
