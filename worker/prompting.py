"""Turns a checked prompt into token ids, beside the event loop.

The template's own process renders, and a few threads tokenize.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from models.checkpoint.tokenizer import EncodeError
from worker.abilities import NO_TEMPLATE, Abilities, check_chat
from worker.chat import ChatPrompt, check_variables
from worker.dialects.history import shaped
from worker.errors import ContextTooLong, DeadlineExceeded, InvalidField, UnsupportedOption
from worker.templates import Rendering, TemplateRenderer
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
class Tokenized:
    """A prompt as its model reads it.

    Attributes:
        ids: its tokens.
        rendering: its text; None: it came in tokens.
    """

    ids: tuple[int, ...]
    rendering: Rendering | None = None


class Prompter:
    """Makes the token ids of prompts.

    Args:
        tokenizer: of the model.
        template: None where the model has no chat template.
        max_context_tokens: prompt and output together.
        abilities: of the model.
    """

    def __init__(
        self,
        tokenizer: Encoder,
        template: TemplateRenderer | None,
        max_context_tokens: int,
        abilities: Abilities | None = None,
    ) -> None:
        self._abilities = abilities or Abilities()
        self._tokenizer = tokenizer
        self._template = template
        self._max_context_tokens = max_context_tokens
        self._executor = ThreadPoolExecutor(MAX_TOKENIZING, thread_name_prefix="tokenizer")

    async def tokenize(self, prompt: Prompt, timeout_s: float | None) -> Tokenized:
        """Return the tokens of a prompt, before it is known whether they fit the context.

        Args:
            prompt: a checked one.
            timeout_s: what is left of the caller's deadline; None: no deadline.

        Raises:
            ChatTemplateRejected: the template refuses the chat.
            ContextTooLong: the text is so long that it cannot fit, whatever its tokens are.
            DeadlineExceeded: it took too long for the caller.
            InvalidField: the prompt has no tokens, more text than is ever tokenized, or what the tokenizer fails on.
            QueueFull: too many chats wait to be rendered.
            UnsupportedOption: the model has no chat template, or its template does not read a part of the chat.
        """
        if isinstance(prompt, TokenPrompt):
            return Tokenized(prompt.ids)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._tokenize(prompt)
        except TimeoutError:
            raise DeadlineExceeded from None

    def close(self) -> None:
        """Take no more prompts; what has not begun is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _tokenize(self, prompt: ChatPrompt | TextPrompt) -> Tokenized:
        if isinstance(prompt, ChatPrompt):
            # A template writes the special tokens itself.
            rendering, adds_special_tokens = await self._render(prompt), False
        else:
            rendering, adds_special_tokens = Rendering(prompt.text), self._needs_special_tokens(prompt.text)
        self._check_size(rendering.text, prompt.path)
        encode: Callable[[str, bool], list[int]] = self._tokenizer.encode
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(self._executor, encode, rendering.text, adds_special_tokens)
        except EncodeError:
            raise InvalidField(prompt.path, "the model's tokenizer fails on this text") from None
        if not ids:
            raise InvalidField(prompt.path, "the prompt has no tokens")
        return Tokenized(tuple(ids), rendering)

    def _check_size(self, text: str, path: str) -> None:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > max(EXACT_TEXT_BYTES, self._max_context_tokens * MAX_TOKEN_BYTES):
            raise ContextTooLong(size // MAX_TOKEN_BYTES, self._max_context_tokens, path)
        if size > MAX_TEXT_BYTES:
            raise InvalidField(path, f"at most {MAX_TEXT_BYTES} bytes of text")

    async def _render(self, chat: ChatPrompt) -> Rendering:
        if self._template is None:
            raise UnsupportedOption(chat.path, NO_TEMPLATE)
        check_chat(chat, self._abilities)
        if chat.variables:
            check_variables(chat, await self._template.variables(chat.path))
        messages = shaped(chat.messages, self._abilities.history)
        return await self._template.render(replace(chat, messages=tuple(messages)))

    def _needs_special_tokens(self, text: str) -> bool:
        bos = self._tokenizer.bos_token
        return not (bos and text.startswith(bos))
