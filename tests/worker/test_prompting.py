"""Prompts become token ids beside the event loop, within bounds."""

import asyncio
import threading

import pytest
from tokenizers import Regex, pre_tokenizers

from models.checkpoint.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import byte_level_tokenizer
from worker.chat import ChatPrompt
from worker.errors import ContextTooLong, DeadlineExceeded, InvalidField, UnsupportedOption
from worker.prompting import EXACT_TEXT_BYTES, MAX_TEXT_BYTES, Prompter, Tokenized
from worker.validation import TextPrompt, TokenPrompt


class Letters:
    """A tokenizer of one token a letter, which puts 0 in front and can be held up."""

    bos_token = "^"

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert self.may_go.wait(10)
        return [0] * add_special_tokens + [ord(letter) for letter in text if letter != " "]


def prompter(tokenizer: Letters | None = None, max_context_tokens: int = 100) -> Prompter:
    return Prompter(tokenizer or Letters(), None, max_context_tokens)


async def test_a_text_gets_the_special_tokens_unless_it_has_them() -> None:
    assert (await prompter().tokenize(TextPrompt("p", "a"), None)).ids == (0, 97)
    assert (await prompter().tokenize(TextPrompt("p", "^a"), None)).ids == (94, 97)


async def test_token_ids_stay_as_they_are() -> None:
    assert await prompter().tokenize(TokenPrompt("p", (5, 6)), None) == Tokenized((5, 6))


async def test_a_text_without_tokens_is_refused() -> None:
    tokenizer = Letters()
    tokenizer.bos_token = " "
    with pytest.raises(InvalidField, match="no tokens"):
        await prompter(tokenizer).tokenize(TextPrompt("p", " "), None)


async def test_a_text_that_cannot_fit_is_never_tokenized() -> None:
    tokenizer = Letters()
    tokenizer.may_go.clear()
    with pytest.raises(ContextTooLong):
        await prompter(tokenizer).tokenize(TextPrompt("p", "x" * (EXACT_TEXT_BYTES + 1)), None)
    with pytest.raises(InvalidField, match="bytes of text"):
        await prompter(tokenizer, 1 << 20).tokenize(TextPrompt("p", "x" * (MAX_TEXT_BYTES + 1)), None)


async def test_a_text_that_the_tokenizer_fails_on_is_refused_by_its_field() -> None:
    raw = byte_level_tokenizer()
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    with pytest.raises(InvalidField, match="the model's tokenizer fails"):
        await Prompter(Tokenizer(raw, file="t"), None, 100).tokenize(TextPrompt("spec.prompt", "x" * 60), None)


async def test_a_chat_needs_a_template() -> None:
    with pytest.raises(UnsupportedOption, match=r"spec\.chat"):
        await prompter().tokenize(ChatPrompt("spec.chat", ({"role": "user", "content": "x"},)), None)


async def test_the_deadline_holds_while_others_tokenize() -> None:
    tokenizer = Letters()
    tokenizer.may_go.clear()
    busy = prompter(tokenizer)
    first = [asyncio.ensure_future(busy.tokenize(TextPrompt("p", "a"), None)) for _ in range(2)]
    with pytest.raises(DeadlineExceeded):
        await busy.tokenize(TextPrompt("p", "a"), 0.02)
    tokenizer.may_go.set()
    assert [each.ids for each in await asyncio.gather(*first)] == [(0, 97)] * 2
    busy.close()
