"""Tokenizers of folders: exact bytes of every token, special tokens, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.tokenizer import EncodeError, Tokenizer, parse_tokenizer, read_tokenizer
from tests.models.checkpoint.fuzzing import Patches, patched, patches, refusal_of
from tests.support.tiny_checkpoints import (
    SPECIAL_TOKENS,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    word_level_tokenizer,
)

BEGIN, END, TURN = 264, 265, 266
TEXTS = st.text() | st.text(alphabet="the in a▁ \n世é<0x41>", max_size=30)


def wrapped(raw: RawTokenizer) -> Tokenizer:
    return Tokenizer(raw, file="tokenizer.json")


def folder(path: Path, config: object = None, raw: RawTokenizer | None = None) -> Path:
    (raw or byte_level_tokenizer()).save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def joined(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    content = b"".join(tokenizer.token_bytes(token) for token in ids)
    return content[1:] if tokenizer.strips_leading_space and content.startswith(b" ") else content


@settings(max_examples=300)
@given(TEXTS)
def test_byte_level_bytes_join_to_what_the_library_decodes(text: str) -> None:
    raw = byte_level_tokenizer()
    ids = wrapped(raw).encode(text, add_special_tokens=False)
    assert joined(wrapped(raw), ids).decode() == raw.decode(ids, skip_special_tokens=True)


@settings(max_examples=300)
@given(TEXTS)
def test_sentencepiece_bytes_join_to_what_the_library_decodes(text: str) -> None:
    raw = sentencepiece_tokenizer()
    ids = wrapped(raw).encode(text, add_special_tokens=False)
    assert joined(wrapped(raw), ids).decode() == raw.decode(ids, skip_special_tokens=True)


def test_a_text_that_the_tokenizers_expressions_give_up_on_is_an_error_of_ours() -> None:
    raw = byte_level_tokenizer()
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    assert wrapped(raw).encode("axy", add_special_tokens=False)
    with pytest.raises(EncodeError):
        wrapped(raw).encode("x" * 60, add_special_tokens=False)


def test_a_text_of_half_characters_is_an_error_of_ours() -> None:
    with pytest.raises(EncodeError):
        wrapped(byte_level_tokenizer()).encode("a\ud800", add_special_tokens=False)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"bos_token": "\ud800"}, "bos_token"),
        ({"eos_token": {"content": "a\udfff"}}, "eos_token"),
        ({"added_tokens_decoder": {"5": {"content": "\ud800"}}}, "added_tokens_decoder.5"),
    ],
)
def test_a_token_of_half_a_character_is_corrupt(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        read_tokenizer(folder(tmp_path, config))
    assert caught.value.key == key


@settings(max_examples=300)
@given(st.lists(st.integers(0, 266)))
def test_byte_level_bytes_of_any_ids_join_to_what_the_library_decodes(ids: list[int]) -> None:
    raw = byte_level_tokenizer()
    assert joined(wrapped(raw), ids).decode(errors="replace") == raw.decode(ids, skip_special_tokens=True)


def test_a_character_comes_in_the_bytes_of_its_tokens() -> None:
    tokenizer = wrapped(byte_level_tokenizer())
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("ď", False)] == [b"\xc4", b"\x8f"]


def test_only_sentencepiece_drops_the_space_in_front() -> None:
    assert wrapped(sentencepiece_tokenizer()).strips_leading_space
    assert not wrapped(byte_level_tokenizer()).strips_leading_space
    raw = sentencepiece_tokenizer()
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert not wrapped(raw).strips_leading_space


def test_a_special_token_adds_nothing_to_the_text_and_has_its_own(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(folder(tmp_path))
    assert tokenizer.is_special(TURN)
    assert tokenizer.token_bytes(TURN) == b""
    assert tokenizer.special_bytes(TURN) == b"<|turn|>"
    assert tokenizer.special_bytes(0) == b""


def test_an_id_of_the_padded_vocabulary_is_no_text() -> None:
    tokenizer = wrapped(byte_level_tokenizer())
    assert tokenizer.vocab_size == 267
    assert (tokenizer.token_bytes(5000), tokenizer.special_bytes(5000), tokenizer.is_special(5000)) == (b"", b"", False)


def test_an_added_token_that_is_not_special_is_text() -> None:
    raw = byte_level_tokenizer()
    raw.add_tokens([AddedToken("<tool 世>", special=False)])
    assert wrapped(raw).token_bytes(267) == "<tool 世>".encode()


@pytest.mark.parametrize("end", ["<|end|>", {"content": "<|end|>", "lstrip": False, "__type": "AddedToken"}])
def test_the_end_token_is_a_text_or_an_object(tmp_path: Path, end: object) -> None:
    tokenizer = read_tokenizer(folder(tmp_path, {"eos_token": end, "bos_token": None}))
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.eos_token_ids) == ("<|end|>", None, {END})


def test_a_folder_without_tokenizer_config_ends_nowhere(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(folder(tmp_path))
    assert (tokenizer.eos_token, tokenizer.eos_token_ids) == (None, frozenset())


def test_an_end_token_is_special_though_nobody_flags_it(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(folder(tmp_path, {"eos_token": "the"}))
    assert tokenizer.token_bytes(257) == b""


def test_tokenizer_config_can_flag_a_token_as_special(tmp_path: Path) -> None:
    raw = byte_level_tokenizer()
    raw.add_tokens([AddedToken("<hidden>", special=False)])
    flagged = {"added_tokens_decoder": {"267": {"content": "<hidden>", "special": True}}}
    tokenizer = read_tokenizer(folder(tmp_path, flagged, raw))
    assert tokenizer.is_special(267)
    assert tokenizer.encode("<hidden>", add_special_tokens=False) == [267]


def test_tokenizer_config_can_add_the_next_token(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(
        folder(tmp_path, {"added_tokens_decoder": {"267": {"content": "<new>", "special": True}}})
    )
    assert tokenizer.encode("<new>", add_special_tokens=False) == [267]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"added_tokens_decoder": {"900": {"content": "<new>", "special": True}}}, "added_tokens_decoder.900"),
        ({"added_tokens_decoder": {"265": {"content": "<|turn|>"}}}, "added_tokens_decoder.265"),
        ({"added_tokens_decoder": {"x": {"content": "<new>"}}}, "added_tokens_decoder.x"),
        ({"added_tokens_decoder": {"9" * 30: {"content": "<new>"}}}, f"added_tokens_decoder.{'9' * 30}"),
        ({"added_tokens_decoder": {"267": {"content": ""}}}, "added_tokens_decoder.267"),
        ({"added_tokens_decoder": {"267": 3}}, "added_tokens_decoder.267"),
        ({"eos_token": "<|nowhere|>"}, "eos_token"),
        ({"bos_token": "<|nowhere|>"}, "bos_token"),
        ({"eos_token": 3}, "eos_token"),
        ({"eos_token": {"content": 3}}, "eos_token"),
    ],
)
def test_names_the_key_that_contradicts_the_tokenizer(tmp_path: Path, config: object, key: str) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        read_tokenizer(folder(tmp_path, config))
    assert (caught.value.file, caught.value.key) == ("tokenizer_config.json", key)


def test_names_the_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"^tokenizer.json: is not there$"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[["q","w"]]}}',
        # The library panics on this one: the product of the merge is no token.
        b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}}',
    ],
)
def test_refuses_what_is_no_tokenizer(content: bytes) -> None:
    with pytest.raises(CheckpointCorrupt) as caught:
        parse_tokenizer(content, "tokenizer.json")
    assert caught.value.file == "tokenizer.json"


@pytest.mark.parametrize(
    ("decoder", "word"),
    [(decoders.WordPiece(), "WordPiece"), (decoders.Metaspace(), "Metaspace"), (decoders.CTC(), "CTC")],
)
def test_names_a_decoder_whose_tokens_depend_on_their_neighbours(decoder: Any, word: str) -> None:
    raw = word_level_tokenizer()
    raw.decoder = decoder
    with pytest.raises(CheckpointRejected, match=word):
        wrapped(raw)


def test_refuses_a_tokenizer_without_a_decoder() -> None:
    with pytest.raises(CheckpointRejected, match="none"):
        wrapped(parse_tokenizer(b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}}', "x"))


@settings(max_examples=200)
@given(patches(st.integers(0, 1200) | st.integers(0, 10_000)))
def test_mutated_bytes_give_a_tokenizer_or_a_checkpoint_error(changes: Patches) -> None:
    content = patched(byte_level_tokenizer().to_str().encode(), changes)
    error = refusal_of(lambda: wrapped(parse_tokenizer(content, "tokenizer.json")))
    assert error is None or error.file == "tokenizer.json"


def test_begin_and_end_texts_come_from_tokenizer_config(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(folder(tmp_path, {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[1]}))
    assert (tokenizer.bos_token, tokenizer.eos_token) == SPECIAL_TOKENS[:2]
