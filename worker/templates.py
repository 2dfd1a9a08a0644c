"""Renders chats with the checkpoint's template, in a child process that can be killed.

One task owns the child: it keeps one warm, hands it one request at a time, and replaces it when a render takes too long
or the child ends. A caller that goes away meanwhile leaves its render to that task. A template is judged by what it
computes; that the machine has no time for it is not its fault.
"""

import asyncio
import contextlib
import json
import logging
import signal
from dataclasses import asdict, dataclass

from worker.chat import ChatPrompt
from worker.child import REAP_TIMEOUT_S, TEMPLATES, Child
from worker.dialects.history import template_tool
from worker.errors import ChatTemplateRejected, ModelUnloading, QueueFull, TemplateBusy

MEMORY_BYTES = 512 << 20
MAX_WAITING = 64
# Python, Jinja and the template itself take 0.1 s on an idle machine.
START_TIMEOUT_S = 20.0
# A busy machine may take so many times as long as the template computes.
WALL_FACTOR = 5.0
# A child may have been ended by something else than this chat; twice it was the chat.
ATTEMPTS = 2

_ENDED = "the chat template took too much memory or time"

log = logging.getLogger(__name__)


class TemplateChildError(Exception):
    """Raised when no child could be started: a fault of this machine, not of a request."""


class _RejectedError(Exception):
    """Raised when the template refuses, with the words for it."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


class _BusyError(Exception):
    """Raised when the child did not answer for another reason than the template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A checkpoint's chat template as the child needs it.

    Attributes:
        source: Jinja source.
        bos_token: text of the token that begins a text.
        eos_token: text of the token that ends one.
        tells_tail: whether renderings say which part of them begins the answer, which takes a second rendering each.
    """

    source: str
    bos_token: str | None
    eos_token: str | None
    tells_tail: bool = False


@dataclass(frozen=True, slots=True)
class Rendering:
    """A chat as its model reads it.

    Attributes:
        text: all of it.
        tail: the part of it that begins the answer; nothing where nobody asked for it, the answer has begun before, or
            the template writes no such part.
    """

    text: str
    tail: str = ""


class TemplateRenderer:
    """Renders chats with one template, one at a time, each within a time limit.

    Args:
        template: what to render with.
        timeout_s: of computing for one render, and for compiling the template; then the child ends and a new one is
            started. A render that does not end because the child gets no time is given up later.
        child: one that was started before; None: the first is still to be started.
        max_waiting: more requests than this are refused.
    """

    def __init__(
        self,
        template: Template,
        *,
        timeout_s: float,
        child: Child | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        hello = {**asdict(template), "timeout_s": timeout_s, "memory_bytes": MEMORY_BYTES}
        self._hello = json.dumps(hello).encode()
        self._timeout_s = timeout_s
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(max_waiting)
        self._spare = child
        self._child: Child | None = None
        self._variables: frozenset[str] = frozenset()
        self._rejected: str | None = None
        self._num_failed_starts = 0
        self._too_long = f"the chat template takes longer than {timeout_s:g} s"
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child that has the template; None while there is none."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Begin to start the child; requests may come at once."""
        self._task = asyncio.create_task(self._serve(), name="templates")

    async def stop(self) -> None:
        """End the child; requests that still wait are refused."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2 * REAP_TIMEOUT_S)

    async def variables(self, path: str) -> frozenset[str]:
        """Return the names that the template reads.

        Args:
            path: where the chat is in its request, for errors.

        Raises:
            ChatTemplateRejected: it is no valid template, or takes too long to compile.
            QueueFull: too many wait.
            TemplateBusy: the child got too little of the machine's time.
            TemplateChildError: no child could be started.
        """
        await self._submit(None, path)
        return self._variables

    async def render(self, chat: ChatPrompt) -> Rendering:
        """Turn a chat into the text that the model reads.

        Args:
            chat: its messages in the form that the template reads.

        Raises:
            ChatTemplateRejected: the template refused, failed, took too long or took too much memory.
            QueueFull: too many wait.
            TemplateBusy: the child got too little of the machine's time.
            TemplateChildError: no child could be started.
        """
        request = {
            "messages": chat.messages,
            "tools": [template_tool(tool.name, tool.description, tool.schema) for tool in chat.tools.offered] or None,
            "variables": chat.variables,
            "continue_final_message": chat.continue_final_message,
        }
        return await self._submit(json.dumps(request).encode(), chat.path)

    async def _submit(self, request: bytes | None, path: str) -> Rendering:
        if self._task is None or self._task.done():
            raise ModelUnloading
        job = _Job(request, path, asyncio.get_running_loop().create_future())
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull:
            raise QueueFull(self._jobs.qsize()) from None
        return await job.answer

    async def _serve(self) -> None:
        try:
            while True:
                with contextlib.suppress(TemplateChildError, _BusyError, _RejectedError):
                    await self._warm_child()
                job = await self._jobs.get()
                if not job.answer.done():
                    await self._answer(job)
        finally:
            await self._drop_child()
            while not self._jobs.empty():
                self._jobs.get_nowait().fail(ModelUnloading())

    async def _answer(self, job: "_Job") -> None:
        try:
            await self._warm_child()
            job.succeed(Rendering("") if job.request is None else await self._render(job.request))
        except _RejectedError as rejected:
            job.fail(ChatTemplateRejected(rejected.words, job.path))
        except _BusyError:
            job.fail(TemplateBusy(self._jobs.qsize() + 1))
        except TemplateChildError as error:
            job.fail(error)
        except asyncio.CancelledError:
            job.fail(ModelUnloading())
            raise

    async def _warm_child(self) -> Child:
        """Return a child that is alive and has loaded the template."""
        if self._rejected is not None:
            raise _RejectedError(self._rejected)
        if self._child is not None and self._child.is_gone:
            await self._drop_child()
        if self._child is None:
            self._child = await self._load(self._take_spare())
        return self._child

    def _take_spare(self) -> Child:
        child, self._spare = self._spare, None
        try:
            return child or Child.spawn(TEMPLATES)
        except OSError as error:
            log.exception("template child was not started")
            raise TemplateChildError("the template child was not started") from error

    async def _load(self, child: Child) -> Child:
        """Have a fresh child compile the template, and remember for good if that cannot be done."""
        try:
            answer = await child.ask(self._hello, START_TIMEOUT_S + WALL_FACTOR * self._timeout_s)
        except TimeoutError:
            await child.end()
            raise _BusyError from None
        except (EOFError, OSError) as error:
            raise self._failed_start(await child.end()) from error
        except asyncio.CancelledError:
            await child.end()
            raise
        if "rejected" in answer:
            self._rejected = answer["rejected"]
            await child.end()
            raise _RejectedError(answer["rejected"])
        self._num_failed_starts = 0
        self._variables = frozenset(answer["variables"])
        return child

    async def _render(self, request: bytes) -> Rendering:
        for _ in range(ATTEMPTS):
            child = await self._warm_child()
            try:
                answer = await child.ask(request, WALL_FACTOR * self._timeout_s)
            except TimeoutError:
                await self._drop_child()
                raise _BusyError from None
            except (EOFError, OSError):
                if await self._drop_child() == signal.SIGPROF:
                    raise _RejectedError(self._too_long) from None
                continue
            if "rejected" in answer:
                raise _RejectedError(answer["rejected"])
            return Rendering(answer["text"], answer["tail"])
        raise _RejectedError(_ENDED)

    def _failed_start(self, ended_by: int | None) -> Exception:
        """Return what it means that a child ended before it had compiled the template."""
        if ended_by is None:
            log.error("template child ended by itself")
            return TemplateChildError("the template child ended by itself")
        self._num_failed_starts += 1
        if ended_by == signal.SIGPROF or self._num_failed_starts >= ATTEMPTS:
            self._rejected = self._too_long if ended_by == signal.SIGPROF else _ENDED
            return _RejectedError(self._rejected)
        log.error("template child was ended while it compiled", extra={"signal": ended_by})
        return _BusyError()

    async def _drop_child(self) -> int | None:
        """End the child, where there is one, and return the signal that ended it."""
        child, self._child = self._child, None
        return None if child is None else await child.end()


@dataclass(frozen=True, slots=True)
class _Job:
    """One render, or only the wish that a child be there, and who waits for it."""

    request: bytes | None
    path: str
    answer: asyncio.Future[Rendering]

    def succeed(self, rendering: Rendering) -> None:
        if not self.answer.done():
            self.answer.set_result(rendering)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
