"""Turns a checked prompt into token ids, beside the event loop.

The template's own process renders, and a few threads tokenize.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from models.checkpoint.tokenizer import EncodeError
from worker.chat import ChatPrompt, check_variables
from worker.errors import ContextTooLong, DeadlineExceeded, InvalidField, UnsupportedOption
from worker.templates import TemplateRenderer
from worker.validation import Prompt, TextPrompt, TokenPrompt

# A prompt of the largest size takes seconds; the tokenizers library gives up Python's lock meanwhile.
MAX_TOKENIZING = 2
# Tokenizing takes some 400 bytes of memory a token (16 MiB of digits: 4 GB and 28 s), so this is the most.
MAX_TEXT_BYTES = 4 << 20
# Up to here a prompt is counted exactly. Beyond, one that cannot fit is refused by its length alone.
EXACT_TEXT_BYTES = 1 << 20
MAX_TOKEN_BYTES = 128


class Encoder(Protocol):
    """The part of a tokenizer that prompts need."""

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a text."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text to tokenize; a chat template writes the special tokens itself."""

    text: str
    add_special_tokens: bool


class Prompter:
    """Makes the token ids of prompts.

    Args:
        tokenizer: of the model.
        template: None where the model has no chat template.
        max_context_tokens: prompt and output together.
    """

    def __init__(self, tokenizer: Encoder, template: TemplateRenderer | None, max_context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_context_tokens = max_context_tokens
        self._executor = ThreadPoolExecutor(MAX_TOKENIZING, thread_name_prefix="tokenizer")

    async def token_ids(self, prompt: Prompt, timeout_s: float | None) -> tuple[int, ...]:
        """Return the token ids of a prompt, before it is known whether they fit the context.

        Args:
            prompt: a checked one.
            timeout_s: what is left of the caller's deadline; None: no deadline.

        Raises:
            ChatTemplateRejected: the template refuses the chat.
            ContextTooLong: the text is so long that it cannot fit, whatever its tokens are.
            DeadlineExceeded: it took too long for the caller.
            InvalidField: the prompt has no tokens, more text than is ever tokenized, or what the tokenizer fails on.
            QueueFull: too many chats wait to be rendered.
            UnsupportedOption: the model has no chat template, or its template does not read a variable.
        """
        if isinstance(prompt, TokenPrompt):
            return prompt.ids
        try:
            async with asyncio.timeout(timeout_s):
                return await self._tokenize(prompt)
        except TimeoutError:
            raise DeadlineExceeded from None

    def close(self) -> None:
        """Take no more prompts; what has not begun is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _tokenize(self, prompt: ChatPrompt | TextPrompt) -> tuple[int, ...]:
        rendered = await self._render(prompt) if isinstance(prompt, ChatPrompt) else self._as_it_is(prompt)
        self._check_size(rendered.text, prompt.path)
        encode: Callable[[str, bool], list[int]] = self._tokenizer.encode
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(self._executor, encode, rendered.text, rendered.add_special_tokens)
        except EncodeError:
            raise InvalidField(prompt.path, "the model's tokenizer fails on this text") from None
        if not ids:
            raise InvalidField(prompt.path, "the prompt has no tokens")
        return tuple(ids)

    def _check_size(self, text: str, path: str) -> None:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > max(EXACT_TEXT_BYTES, self._max_context_tokens * MAX_TOKEN_BYTES):
            raise ContextTooLong(size // MAX_TOKEN_BYTES, self._max_context_tokens, path)
        if size > MAX_TEXT_BYTES:
            raise InvalidField(path, f"at most {MAX_TEXT_BYTES} bytes of text")

    async def _render(self, chat: ChatPrompt) -> Rendered:
        if self._template is None:
            raise UnsupportedOption(chat.path, "the model has no chat template")
        if chat.variables:
            check_variables(chat, await self._template.variables(chat.path))
        return Rendered(await self._template.render(chat), add_special_tokens=False)

    def _as_it_is(self, prompt: TextPrompt) -> Rendered:
        bos = self._tokenizer.bos_token
        return Rendered(prompt.text, add_special_tokens=not (bos and prompt.text.startswith(bos)))
