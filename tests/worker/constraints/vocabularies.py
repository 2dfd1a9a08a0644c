"""Vocabularies for these tests: two tiny ones, and that of SmolLM2."""

from functools import cache

from models.checkpoint.gguf import read_gguf_header
from models.checkpoint.gguf_tokenizer import gguf_tokenizer
from models.checkpoint.tokenizer import Tokenizer
from tests.support.smollm2 import smollm2_path
from tests.support.tiny_checkpoints import SPECIAL_TOKENS, byte_level_tokenizer, sentencepiece_tokenizer
from worker.constraints.tokens import ConstrainedTokens, constrained_tokens

# A model's vocabulary is often padded.
PADDING = 5


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), file="tokenizer.json", eos_token=SPECIAL_TOKENS[1])


@cache
def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_tokenizer(), file="tokenizer.json", eos_token=SPECIAL_TOKENS[1])


@cache
def smollm2() -> Tokenizer:
    path = smollm2_path()
    return gguf_tokenizer(read_gguf_header(path).metadata, path.name)


@cache
def tokens_of(name: str) -> ConstrainedTokens:
    """Return the tokens of one of these tokenizers by its function's name."""
    tokenizer = TOKENIZERS[name]()
    return constrained_tokens(tokenizer, tokenizer.vocab_size + PADDING, ())


TOKENIZERS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "smollm2": smollm2}
