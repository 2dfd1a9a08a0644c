"""The vocabulary that llguidance is given: the bytes of every token, and the way plain text is cut."""

import json
from collections.abc import Iterable

import numpy as np
import pytest

from models.checkpoint.tokenizer import EncodeError
from tests.worker.constraints.drawing import Drawer, allowed_ids, constraint_of
from tests.worker.constraints.vocabularies import PADDING, TOKENIZERS, byte_level, sentencepiece, tokens_of
from worker.constraints.tokens import constrained_tokens
from worker.errors import ConstraintInvalid

NAMES = sorted(TOKENIZERS)


class Reencoded:
    """A tokenizer with another way to encode, or other bytes."""

    def __init__(self, words: list[bytes], special: dict[int, bytes], encoded: Iterable[int] = ()) -> None:
        self.eos_token_ids = frozenset(special)
        self._words = words
        self._special = special
        self._encoded = list(encoded)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if text == "fails":
            raise EncodeError("fails")
        return self._encoded

    def token_bytes(self, token_id: int) -> bytes:
        return self._words[token_id] if token_id < len(self._words) else b""

    def special_bytes(self, token_id: int) -> bytes:
        return self._special.get(token_id, b"")


@pytest.mark.parametrize("name", NAMES)
def test_every_token_has_its_exact_bytes(name: str) -> None:
    tokenizer, tokens = TOKENIZERS[name](), tokens_of(name)
    known = {token_id: tokens.vocabulary.decode_bytes([token_id]) for token_id in range(tokens.vocab_size)}
    # The library's way to write a token without bytes.
    given = {token_id: word for token_id, word in known.items() if word != f"<[{token_id}]>".encode()}
    plain = {token_id for token_id in known if tokenizer.token_bytes(token_id).strip(b"\xff")}

    assert {token_id: tokenizer.token_bytes(token_id) for token_id in plain & given.keys()} == {
        token_id: given[token_id] for token_id in plain & given.keys()
    }
    assert {tokenizer.token_bytes(token_id) for token_id in plain} == {
        given[token_id] for token_id in plain & given.keys()
    }
    assert given.keys() - plain == set(tokens.special_ids.values())
    assert tokens.vocabulary.vocab_size == tokenizer.vocab_size + PADDING


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_and_ends_are_marked(name: str) -> None:
    tokenizer, tokens = TOKENIZERS[name](), tokens_of(name)
    special = {token_id for token_id in range(tokens.vocab_size) if tokenizer.is_special(token_id)}

    assert set(tokens.special_ids.values()) == special
    assert {token_id for token_id in special if tokens.vocabulary.is_special_token(token_id)} == special
    assert tokens.eos_ids == tokenizer.eos_token_ids
    assert sorted(tokens.vocabulary.eos_tokens) == sorted(tokens.eos_ids)


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_never_allowed(name: str) -> None:
    tokenizer, tokens = TOKENIZERS[name](), tokens_of(name)

    allowed = allowed_ids(constraint_of(tokens, "regex", "(?s:.*)").mask())

    assert max(allowed) < tokenizer.vocab_size
    assert len(allowed) > 150


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["the thing", " the", "世界 é🙂", "<|end|> <|im_end|>", "a\n\n b", "the " * 200])
def test_forced_text_is_written_exactly_and_without_special_tokens(name: str, text: str) -> None:
    tokenizer, tokens = TOKENIZERS[name](), tokens_of(name)
    constraint = constraint_of(tokens, "choices", json.dumps([text]))
    ids = Drawer(tokenizer, tokens, np.random.default_rng(5)).draw(constraint, skips=True)

    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert not any(map(tokenizer.is_special, ids))


@pytest.mark.parametrize("text", ["the thing", "in the north", "hello there, world"])
def test_forced_text_is_cut_as_the_model_would_cut_it(text: str) -> None:
    constraint = constraint_of(tokens_of("smollm2"), "choices", json.dumps([text]))

    assert list(constraint.skip()) == TOKENIZERS["smollm2"]().encode(text, False)


def test_a_tokenizer_that_puts_a_space_before_a_text_does_not_put_it_into_a_forced_one() -> None:
    tokenizer = sentencepiece()
    constraint = constraint_of(tokens_of("sentencepiece"), "choices", json.dumps(["the an"]))

    ids = constraint.skip()

    assert tokenizer.token_bytes(tokenizer.encode("the", False)[0]).startswith(b" ")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"the an"


def test_of_tokens_of_the_same_bytes_the_last_is_allowed() -> None:
    tokens = constrained_tokens(Reencoded([b"a", b"b", b"a", b""], {3: b"<end>"}), 4, ())

    assert allowed_ids(constraint_of(tokens, "regex", "a").mask()) == [2]


def test_an_end_that_is_no_special_token_is_no_text_either() -> None:
    tokenizer = byte_level()
    newline = tokenizer.encode("\n", False)[0]
    tokens = constrained_tokens(tokenizer, tokenizer.vocab_size, [newline])

    allowed = allowed_ids(constraint_of(tokens, "regex", "(?s:.){2}").mask())

    assert tokens.eos_ids == tokenizer.eos_token_ids | {newline}
    assert newline not in allowed


def test_a_model_with_fewer_logits_than_tokens_is_not_asked_for_more() -> None:
    tokenizer = byte_level()
    tokens = constrained_tokens(tokenizer, 100, ())

    mask = constraint_of(tokens, "regex", "(?s:.*)").mask()

    assert mask.shape == (4,)
    assert max(allowed_ids(mask)) < 100


def test_a_special_token_without_the_form_of_a_name_is_named_by_its_number() -> None:
    words = [bytes([byte]) for byte in range(128)]
    special = {128: b"<end>", 129: b"[CALLS]", 130: b"<a b>", 131: b"<end>"}
    tokens = constrained_tokens(Reencoded(words, special), 132, ())
    constraint = constraint_of(tokens, "lark", 'start: "[CALLS]" <[129]> <[130]> <token:131> <end>')

    assert tokens.special_ids == {"<end>": 128, "<token:129>": 129, "<token:130>": 130, "<token:131>": 131}
    assert constraint.skip() == (*b"[CALLS]", 129, 130, 131, 128)


@pytest.mark.parametrize("vocab_size", [255, 256, 257])
def test_a_model_without_ends_has_masks_of_its_own_size(vocab_size: int) -> None:
    tokens = constrained_tokens(Reencoded([bytes([byte]) for byte in range(256)], {}), vocab_size, ())

    mask = constraint_of(tokens, "regex", "(?s:.*)").mask()

    assert mask.shape == (-(-vocab_size // 32),)
    assert max(allowed_ids(mask)) < 256


@pytest.mark.parametrize("text", ["xyz", "fails"])
def test_text_that_no_tokens_write_ends_the_request_by_name(text: str) -> None:
    tokens = constrained_tokens(Reencoded([b"a", b"x", b""], {2: b"<end>"}, encoded=[0]), 3, ())
    constraint = constraint_of(tokens, "choices", json.dumps([text]))

    with pytest.raises(ConstraintInvalid, match="no tokens of this model write"):
        constraint.skip()
