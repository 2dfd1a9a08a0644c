"""The tokenizer that a GGUF file carries in its metadata: byte-level BPE.

Keys: ggml's docs/gguf.md. The splitting patterns belong to the published tokenizers (GPT-2, SmolLM, Llama 3, Qwen2) and
are the ones that llama.cpp's `llama-vocab.cpp` gives to the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.gguf import MetadataValue
from models.checkpoint.tokenizer import Tokenizer, add_tokens, guarded

_PREFIX = "tokenizer.ggml"
_CONTROL, _USER_DEFINED = 3, 4
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# A word that is a token as a whole is not merged from its letters.
_IGNORES_MERGES = frozenset({"llama-bpe", "llama3"})
# Families whose text begins with the begin-of-text token unless the file says otherwise.
_ADDS_BOS = frozenset({"llama-bpe", "llama3"})
_END_IDS = ("eos", "eot", "eom")
_END_TOKENS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>",
})  # fmt: skip


def gguf_tokenizer(metadata: Mapping[str, MetadataValue], file: str) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Control tokens are special. A text ends at eos, eot and eom, and at every control token that is a well-known end of
    a turn.

    Args:
        metadata: of the file's header.
        file: base name of the file, for errors.

    Raises:
        CheckpointCorrupt: tokens, merges, types and ids do not fit each other.
        CheckpointRejected: a tokenizer or way of splitting that this build does not know.
    """
    kind = metadata.get(f"{_PREFIX}.model")
    if kind != "gpt2":
        raise CheckpointRejected(
            f"the tokenizer {kind} is not one of gpt2 (byte-level BPE)", file=file, key=f"{_PREFIX}.model"
        )
    split = metadata.get(f"{_PREFIX}.pre", "default")
    if not isinstance(split, str) or split not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise CheckpointRejected(f"the split {split} is not one of {known}", file=file, key=f"{_PREFIX}.pre")
    tokens = _strings(metadata, "tokens", file)
    vocab = _vocab(tokens, file)
    merges = _merges(_strings(metadata, "merges", file), vocab, file)
    raw = guarded(lambda: RawTokenizer(models.BPE(vocab, merges, ignore_merges=split in _IGNORES_MERGES)), file)
    _set_splitting(raw, split)
    control = _add_typed_tokens(raw, metadata, tokens, file)
    ends = {token_id for name in _END_IDS if (token_id := _special_id(metadata, name, tokens, file)) is not None}
    ends |= {token_id for token_id in control if tokens[token_id] in _END_TOKENS}
    bos, eos = (_special_id(metadata, name, tokens, file) for name in ("bos", "eos"))
    _set_surroundings(raw, metadata, {"bos": bos, "eos": eos}, tokens)
    return Tokenizer(
        raw,
        file=file,
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
        eos_token_ids=ends,
    )


def _strings(metadata: Mapping[str, MetadataValue], name: str, file: str) -> list[str]:
    value = metadata.get(f"{_PREFIX}.{name}")
    if not isinstance(value, list):
        raise CheckpointCorrupt("is missing or no list of strings", file=file, key=f"{_PREFIX}.{name}")
    return value


def _vocab(tokens: list[str], file: str) -> dict[str, int]:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if not tokens or len(vocab) != len(tokens):
        raise CheckpointCorrupt("is empty or has a token twice", file=file, key=f"{_PREFIX}.tokens")
    return vocab


def _merges(lines: list[str], vocab: Mapping[str, int], file: str) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line in lines:
        # The first character may itself be a space in old files, so the divider is looked for after it.
        divider = line.find(" ", 1)
        left, right = line[:divider], line[divider + 1 :]
        if divider < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise CheckpointCorrupt("has a merge of what are no tokens", file=file, key=f"{_PREFIX}.merges")
        merges.append((left, right))
    return merges


def _set_splitting(raw: RawTokenizer, split: str) -> None:
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[split]]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    raw.pre_tokenizer = pre_tokenizers.Sequence(steps)
    raw.decoder = decoders.ByteLevel()


def _add_typed_tokens(
    raw: RawTokenizer, metadata: Mapping[str, MetadataValue], tokens: list[str], file: str
) -> list[int]:
    """Tell the tokenizer which tokens stand for themselves in a text; return the ids of control tokens."""
    types = metadata.get(f"{_PREFIX}.token_type")
    if types is None:
        return []
    if not isinstance(types, np.ndarray) or len(types) != len(tokens):
        raise CheckpointCorrupt("does not give every token a type", file=file, key=f"{_PREFIX}.token_type")
    control = np.flatnonzero(types == _CONTROL).tolist()
    defined = np.flatnonzero(types == _USER_DEFINED).tolist()
    if any(not tokens[token_id] for token_id in (*control, *defined)):
        raise CheckpointCorrupt("has a special token without text", file=file, key=f"{_PREFIX}.tokens")
    add_tokens(raw, [AddedToken(tokens[i], special=True, normalized=False) for i in control])
    add_tokens(raw, [AddedToken(tokens[i], special=False, normalized=False) for i in defined])
    return control


def _special_id(metadata: Mapping[str, MetadataValue], name: str, tokens: list[str], file: str) -> int | None:
    key = f"{_PREFIX}.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < len(tokens):
        raise CheckpointCorrupt("is no token's id", file=file, key=key)
    return value


def _set_surroundings(
    raw: RawTokenizer, metadata: Mapping[str, MetadataValue], ids: Mapping[str, int | None], tokens: list[str]
) -> None:
    """Add begin-of-text and end-of-text around an encoding where the file asks for it."""
    adds_bos = metadata.get(f"{_PREFIX}.pre") in _ADDS_BOS
    bos = ids["bos"] if metadata.get(f"{_PREFIX}.add_bos_token", adds_bos) is True else None
    eos = ids["eos"] if metadata.get(f"{_PREFIX}.add_eos_token", False) is True else None
    before = [] if bos is None else [tokens[bos]]
    after = [] if eos is None else [tokens[eos]]
    if before or after:
        around = [(tokens[token_id], token_id) for token_id in (bos, eos) if token_id is not None]
        raw.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", *after, "$B"], special_tokens=around
        )
