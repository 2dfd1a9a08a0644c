"""Finding the texts of the tokens in a Whisper checkpoint's folder, whichever file its layout keeps them in.

    tokenizer.json                 transformers, and most of the others
    vocab.json, merges.txt         older transformers
    vocabulary.json, .txt          CTranslate2: every token by id, without merges
    multilingual.tiktoken, gpt2.   OpenAI and mlx-whisper: the bytes of every text token by id, without merges

Ids of byte-level BPE are in the order of its merges, so where there are none they follow from the ids.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from models.checkpoint.decoder import byte_characters
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from models.checkpoint.files import MAX_TOKENIZER_BYTES, inside, parse_object, read_bytes
from models.checkpoint.tokenizer import TOKENIZER_FILE, Tokenizer, add_tokens, guarded, parse_tokenizer
from models.whisper.config import Config

_END = "<|endoftext|>"
_NUM_BYTES = 256


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a folder says of its tokens.

    Attributes:
        content: of the files it stands in.
        tokenizer: builds the tokenizer; raises CheckpointError, naming the file.
    """

    content: bytes
    tokenizer: Callable[[], Tokenizer]


def read_vocabulary(folder: Path, config: Config) -> Vocabulary:
    """Read the first of a folder's vocabularies.

    Raises:
        CheckpointMissing: there is none.
        CheckpointRejected: it is too large or no regular file.
    """
    ranks_file = "multilingual.tiktoken" if config.is_multilingual else "gpt2.tiktoken"
    num_texts = 50_257 if config.is_multilingual else 50_256
    readers: dict[str, Callable[[bytes, str], RawTokenizer]] = {
        TOKENIZER_FILE: parse_tokenizer,
        "vocab.json": lambda content, file: _from_merges(content, file, _read(folder, "merges.txt"), num_texts),
        "vocabulary.json": lambda content, file: _from_texts(_json_texts(content, file)[:num_texts], file),
        "vocabulary.txt": lambda content, file: _from_texts(_decoded(content, file).split("\n")[:num_texts], file),
        ranks_file: lambda content, file: _from_texts(_ranked_texts(content, file), file),
    }
    file = next((file for file in readers if (folder / file).exists()), None)
    if file is not None:
        content = _read(folder, file)
        return Vocabulary(content, lambda: _tokenizer(readers[file](content, file), file))
    raise CheckpointMissing(f"is not there, nor any of {', '.join(list(readers)[1:])}", file=TOKENIZER_FILE)


def _read(folder: Path, file: str) -> bytes:
    return read_bytes(inside(folder, file, named_by=file), MAX_TOKENIZER_BYTES)


def _tokenizer(raw: RawTokenizer, file: str) -> Tokenizer:
    if raw.token_to_id(_END) is None:
        raise CheckpointCorrupt(f"has no {_END}", file=file)
    return Tokenizer(raw, file=file, eos_token=_END)


def _from_merges(content: bytes, file: str, merges: bytes, num_texts: int) -> RawTokenizer:
    ids = parse_object(content, file)
    texts = {text: number for text, number in ids.items() if type(number) is int and 0 <= number < num_texts}
    lines = [line for line in _decoded(merges, "merges.txt").split("\n") if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ", 1)) for line in lines]
    if any(len(pair) != 2 for pair in pairs):
        raise CheckpointCorrupt("has a merge that is no pair", file="merges.txt")
    return _byte_level(texts, cast("list[tuple[str, str]]", pairs), file)


def _from_texts(texts: Sequence[str], file: str) -> RawTokenizer:
    vocab = {text: token_id for token_id, text in enumerate(texts)}
    if len(vocab) != len(texts) or len(texts) <= _NUM_BYTES:
        raise CheckpointCorrupt("has a token twice, or too few of them", file=file)
    return _byte_level(vocab, list(_merges(texts, vocab, file)), file)


def _byte_level(vocab: Mapping[str, int], merges: list[tuple[str, str]], file: str) -> RawTokenizer:
    raw = guarded(lambda: RawTokenizer(models.BPE(dict(vocab), merges)), file)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    add_tokens(raw, [AddedToken(_END, special=True, normalized=False)])
    return raw


def _merges(texts: Sequence[str], vocab: Mapping[str, int], file: str) -> Iterable[tuple[str, str]]:
    """Yield for each token the two older ones that it is merged of: what the merges before it leave of its bytes."""
    for token_id, text in enumerate(texts):
        parts = list(text)
        while len(parts) > 2:
            ranks = [vocab.get(left + right, token_id) for left, right in pairwise(parts)]
            place = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[place] >= token_id:
                raise CheckpointCorrupt("is not in the order of its merges", file=file)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def _json_texts(content: bytes, file: str) -> list[str]:
    try:
        value: Any = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt("is not valid JSON", file=file) from error
    texts = cast("list[object]", value) if isinstance(value, list) else []
    found = [text for text in texts if isinstance(text, str)]
    if not found or len(found) != len(texts):
        raise CheckpointCorrupt("is no list of texts", file=file)
    return found


def _ranked_texts(content: bytes, file: str) -> list[str]:
    """Return texts of lines `<base64 of the bytes> <rank>`."""
    characters = {byte: character for character, byte in byte_characters().items()}
    texts: list[str] = []
    for line in _decoded(content, file).split("\n"):
        if not line:
            continue
        encoded, _, rank = line.partition(" ")
        try:
            # One token of OpenAI's multilingual vocabulary has no text, which stands there as padding alone.
            raw = base64.b64decode(encoded.lstrip("=") and encoded, validate=True)
        except ValueError as error:
            raise CheckpointCorrupt("has a line that is no token", file=file) from error
        if rank != str(len(texts)):
            raise CheckpointCorrupt("has a line that is no token", file=file)
        texts.append("".join(characters[byte] for byte in raw))
    return texts


def _decoded(content: bytes, file: str) -> str:
    try:
        return content.decode("utf-8")
    except ValueError as error:
        raise CheckpointCorrupt("is not UTF-8", file=file) from error
