"""Turns the texts of a request into tokens, beside the event loop."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

import numpy as np

from models.checkpoint.tokenizer import EncodeError
from models.embedding.framing import Cut, Ends, Framed, common_start, fit
from models.embedding.reranker import Question, Reranker
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.reading import EmbedAsk, RerankAsk
from worker.errors import ContextTooLong, DeadlineExceeded, InvalidField
from worker.prompting import EXACT_TEXT_BYTES, MAX_TEXT_BYTES, MAX_TOKEN_BYTES

MAX_TOKENIZING = 2
# Texts that are tokenized in one go, in bytes: between two goes others come to theirs, and a caller may leave.
BATCH_BYTES = 64 << 10

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
# Makes the tokens of the input of an index.
Maker = Callable[[int], Framed]


class InputMaker:
    """Makes the tokens of inputs.

    Args:
        loaded: the model.
    """

    def __init__(self, loaded: LoadedEncoder) -> None:
        self._max_tokens = loaded.max_tokens
        self._tokenizer = loaded.model.tokenizer
        self._vocab_size = loaded.model.text_checkpoint.text.vocab_size
        self._ends = Ends.of(self._tokenizer)
        self._executor = ThreadPoolExecutor(MAX_TOKENIZING, thread_name_prefix="tokenizer")

    async def embedded(self, ask: EmbedAsk, timeout_s: float | None) -> list[Framed]:
        """Return the tokens of every input of a request for vectors.

        Args:
            ask: a checked one.
            timeout_s: what is left of the caller's deadline; None: no deadline.

        Raises:
            ContextTooLong: an input is too long, and nothing may be left out of it.
            DeadlineExceeded: it took too long for the caller.
            InvalidField: an input has no tokens, more text than is ever tokenized, or what the tokenizer fails on.
        """
        sizes = [0 if isinstance(each, array) else _num_bytes(each) for each in ask.inputs]
        for index, size in enumerate(sizes):
            self._check_size(size, ask.cut, f"inputs[{index}].text")
        try:
            async with asyncio.timeout(timeout_s):
                prompt = await self._beside(self._encode, ask.prompt, "options")
                return await self._made(sizes, partial(self._input, ask, prompt))
        except TimeoutError:
            raise DeadlineExceeded from None

    async def reranked(self, ask: RerankAsk, reranker: Reranker, timeout_s: float | None) -> list[Framed]:
        """Return the tokens of every document of a request for a ranking; raises as `embedded`.

        Args:
            ask: a checked one.
            reranker: of the model.
            timeout_s: what is left of the caller's deadline; None: no deadline.
        """
        self._check_size(_num_bytes(ask.query), Cut.NONE, "query")
        sizes = [_num_bytes(each) for each in ask.documents]
        for index, size in enumerate(sizes):
            self._check_size(size, ask.cut, f"documents[{index}]")
        try:
            async with asyncio.timeout(timeout_s):
                question = await self._beside(self._question, ask, reranker)
                return await self._made(sizes, partial(self._document, ask, reranker, question))
        except TimeoutError:
            raise DeadlineExceeded from None

    def close(self) -> None:
        """Take no more texts; what has not begun is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _made(self, sizes: Sequence[int], make: Maker) -> list[Framed]:
        made: list[Framed] = []
        for batch in _batches(sizes):
            made += await self._beside(_make_all, make, batch)
        return made

    async def _beside(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    def _check_size(self, num_bytes: int, cut: Cut, path: str) -> None:
        most = self._max_tokens
        if cut is Cut.NONE and num_bytes > max(EXACT_TEXT_BYTES, most * MAX_TOKEN_BYTES):
            raise ContextTooLong(num_bytes // MAX_TOKEN_BYTES, most, path, has_output=False)
        if num_bytes > MAX_TEXT_BYTES:
            raise InvalidField(path, f"at most {MAX_TEXT_BYTES} bytes of text")

    def _encode(self, text: str, path: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, False)
        except EncodeError:
            raise InvalidField(path, "the model's tokenizer fails on this text") from None

    def _input(self, ask: EmbedAsk, prompt: Sequence[int], index: int) -> Framed:
        given = ask.inputs[index]
        if isinstance(given, array):
            path = f"inputs[{index}].token_ids.ids"
            self._check_ids(given, path)
            return self._fitting(*self._ends.around_tokens(given), cut=ask.cut, path=path)
        path = f"inputs[{index}].text"
        ids = self._encode(ask.prompt + given, path)
        num_prompt = common_start(prompt, ids)
        head = (*self._ends.lead, *ids[:num_prompt])
        return self._fitting(head, ids[num_prompt:], self._ends.tail, cut=ask.cut, path=path)

    def _fitting(self, head: Sequence[int], body: Sequence[int], tail: Sequence[int], *, cut: Cut, path: str) -> Framed:
        framed = fit(head, body, tail, self._max_tokens, cut)
        if framed is None:
            raise ContextTooLong(len(head) + len(body) + len(tail), self._max_tokens, path, has_output=False)
        if not framed.ids:
            raise InvalidField(path, "has no tokens")
        return framed

    def _check_ids(self, ids: array[int], path: str) -> None:
        strange = np.frombuffer(ids, dtype=np.uint32) >= self._vocab_size
        if strange.any():
            raise InvalidField(f"{path}[{int(strange.argmax())}]", f"token ids are below {self._vocab_size}")

    def _question(self, ask: RerankAsk, reranker: Reranker) -> Question:
        try:
            question = reranker.question(ask.query, ask.instruction)
        except EncodeError:
            raise InvalidField("query", "the model's tokenizer fails on this text") from None
        if (num_tokens := reranker.num_frame_tokens(question)) > self._max_tokens:
            raise ContextTooLong(num_tokens, self._max_tokens, "query", has_output=False)
        return question

    def _document(self, ask: RerankAsk, reranker: Reranker, question: Question, index: int) -> Framed:
        path = f"documents[{index}]"
        try:
            framed = reranker.framed(question, ask.documents[index], self._max_tokens, ask.cut)
            if framed is not None:
                return framed
            whole = reranker.framed(question, ask.documents[index], MAX_TEXT_BYTES * 2, Cut.NONE)
        except EncodeError:
            raise InvalidField(path, "the model's tokenizer fails on this text") from None
        num_tokens = self._max_tokens + 1 if whole is None else len(whole.ids)
        raise ContextTooLong(num_tokens, self._max_tokens, path, has_output=False)


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _batches(sizes: Sequence[int]) -> Iterator[range]:
    """Yield the indices of texts that go together: up to so many bytes, and one at least."""
    start, num_bytes = 0, 0
    for index, size in enumerate(sizes):
        if index > start and num_bytes + size > BATCH_BYTES:
            yield range(start, index)
            start, num_bytes = index, 0
        num_bytes += size
    yield range(start, len(sizes))


def _make_all(make: Maker, indices: range) -> list[Framed]:
    return [make(index) for index in indices]
