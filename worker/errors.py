"""Every failure that a worker can answer with; `worker.failures` says them in gRPC's words.

    WorkerError
    ├── RequestError
    │   ├── MalformedRequest
    │   ├── FieldError
    │   │   ├── InvalidField
    │   │   ├── UnsupportedOption
    │   │   ├── ContextTooLong
    │   │   ├── ConstraintInvalid
    │   │   ├── ConstraintTooComplex
    │   │   ├── ChatTemplateRejected
    │   │   ├── AudioUndecodable
    │   │   ├── AudioTooLong
    │   │   ├── AudioTooLarge
    │   │   └── ResponseTooLarge
    │   ├── StreamOrder
    │   ├── AdapterNotFound
    │   ├── AdapterConflict
    │   ├── AdapterIncompatible
    │   ├── AdapterInUse
    │   └── CredentialsInvalid
    ├── CapacityError
    │   ├── QueueFull
    │   ├── TemplateBusy
    │   ├── ConstraintBusy
    │   ├── AudioNotStored
    │   ├── AdapterCapacity
    │   └── SlowReader
    ├── StateError
    │   ├── ModelLoading
    │   ├── ModelUnloading
    │   └── TaskNotSupported
    ├── EndedError
    │   ├── DeadlineExceeded
    │   ├── ClientGone
    │   ├── StreamIdle
    │   └── CancelledByOperator
    ├── LoadError
    │   ├── ModelLoadFailed
    │   ├── ModelExceedsMemory
    │   ├── CheckpointRejected
    │   └── CheckpointCorrupt
    └── InternalError

A message is for people and reaches clients: it holds no path, no prompt and no text of a foreign exception. What a
program needs is in `metadata`. An exception of any other class is a bug: the client learns its incident, the log its
trace.
"""

import logging
import secrets
from collections.abc import Sequence
from typing import Self

from worker.clipping import clipped

# A status repeats them; all of it stays far below what a call's metadata may hold.
MAX_MESSAGE_BYTES, MAX_FACT_BYTES = 640, 240


class WorkerError(Exception):
    """Root of what the worker raises; `message` is safe for clients, `metadata` carries the facts, both cut to size."""

    def __init__(self, message: str, **metadata: str | int | float) -> None:
        self.message = clipped(message, MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.metadata = {key: clipped(str(value), MAX_FACT_BYTES) for key, value in metadata.items()}


class RequestError(WorkerError):
    """Groups what the caller has to change."""


class MalformedRequest(RequestError):
    """Raised when a body is no protobuf or differs from what the gateway read in it."""


class FieldError(RequestError):
    """Groups what is wrong with one field, named by its path from the request down."""

    def __init__(self, field: str, description: str, **metadata: int | float) -> None:
        self.field = clipped(field, MAX_FACT_BYTES)
        self.description = clipped(description, MAX_MESSAGE_BYTES)
        super().__init__(f"{self.field}: {self.description}", field=field, **metadata)


class InvalidField(FieldError):
    """Raised when a field is out of range or contradicts another."""


class UnsupportedOption(FieldError):
    """Raised when a request sets a field or enum value that this model or this build does not honour or know."""

    def __init__(self, field: str, description: str = "not supported by this model or this build") -> None:
        super().__init__(field, description)


class ContextTooLong(FieldError):
    """Raised when the prompt leaves no room in the context for one more token, or where none follows is longer."""

    def __init__(
        self, prompt_tokens: int, max_context_tokens: int, field: str = "spec", *, has_output: bool = True
    ) -> None:
        lacks = f"the context of {max_context_tokens} has no room for output"
        description = f"{prompt_tokens} tokens; {lacks if has_output else f'at most {max_context_tokens}'}"
        super().__init__(field, description, prompt_tokens=prompt_tokens, max_context_tokens=max_context_tokens)


class ConstraintInvalid(FieldError):
    """Raised when a grammar, regex or schema is wrong, or says what is not supported in one."""


class ConstraintTooComplex(FieldError):
    """Raised when a grammar, regex or schema is over its limits of size, depth or time."""


class ChatTemplateRejected(FieldError):
    """Raised when the checkpoint's template fails on these messages, takes too long, or tries to leave its sandbox."""

    def __init__(self, description: str, field: str = "spec.chat") -> None:
        super().__init__(field, description)


class AudioUndecodable(FieldError):
    """Raised when audio is of no kind that is read, or spoilt."""

    def __init__(self, description: str) -> None:
        super().__init__("audio", description)


class AudioTooLong(FieldError):
    """Raised when there are more seconds of audio than may be."""

    def __init__(self, max_audio_s: float) -> None:
        super().__init__("audio", f"more than {max_audio_s:g} seconds", max_audio_s=max_audio_s)


class AudioTooLarge(FieldError):
    """Raised when audio is more bytes than may come or be decoded."""

    def __init__(self, description: str, max_bytes: int) -> None:
        super().__init__("audio", description, max_bytes=max_bytes)


class ResponseTooLarge(FieldError):
    """Raised when a unary answer would be larger than the limit."""

    def __init__(self, max_response_bytes: int, field: str = "spec", remedy: str = "stream it or ask for less") -> None:
        description = f"the answer is larger than {max_response_bytes} bytes; {remedy}"
        super().__init__(field, description, max_response_bytes=max_response_bytes)


class StreamOrder(RequestError):
    """Raised when the messages of a caller's stream come in the wrong order."""


class AdapterNotFound(RequestError):
    """Raised when a request names an adapter that the model does not have."""

    def __init__(self, adapter: str, available: Sequence[str] = ()) -> None:
        names = ", ".join(available)
        super().__init__(f"the model has no such adapter; it has: {names or 'none'}", adapter=adapter, available=names)


class AdapterConflict(RequestError):
    """Raised when an adapter of other content has the name already."""

    def __init__(self, adapter: str, revision: str) -> None:
        message = "an adapter of other content has this name; replace it, or unload it first"
        super().__init__(message, adapter=adapter, revision=revision)


class AdapterIncompatible(RequestError):
    """Raised when an adapter is spoilt, of a kind that is not run, or does not fit the model."""

    def __init__(self, adapter: str, problem: str, **metadata: str) -> None:
        super().__init__(problem, adapter=adapter, **metadata)

    @classmethod
    def by_overflow(cls, names: Sequence[str]) -> Self | None:
        """Return what a request is told whose logits are no numbers; None where it names no adapters."""
        told = ", ".join(names)
        problem = f"the answer is no number: with {told}, scaled as asked, what the model computes overflows"
        return cls(told, problem) if names else None


class AdapterInUse(RequestError):
    """Raised when requests used an adapter for longer than its unloading could wait; it stays."""

    def __init__(self, adapter: str, num_requests: int) -> None:
        super().__init__(f"{num_requests} requests still use the adapter", adapter=adapter, requests=num_requests)


class CredentialsInvalid(RequestError):
    """Raised when a call on the worker's socket does not come from its gateway."""

    def __init__(self) -> None:
        super().__init__("wrong credentials")


class CapacityError(WorkerError):
    """Groups what passes when the load does."""


class QueueFull(CapacityError):
    """Raised when as many requests run and wait as may."""

    def __init__(self, depth: int) -> None:
        super().__init__(f"the queue is full: {depth} requests run or wait", depth=depth)


class TemplateBusy(CapacityError):
    """Raised when the process that renders chats got too little of the machine's time for this one."""

    def __init__(self, depth: int) -> None:
        super().__init__("the process that renders chats is busy", depth=depth, scope="chat_template")


class ConstraintBusy(CapacityError):
    """Raised when there is no time or memory to prepare another constraint, whatever it is."""

    def __init__(self, depth: int) -> None:
        super().__init__("there is no room for another constraint now", depth=depth, scope="constraint")


class AudioNotStored(CapacityError):
    """Raised when the disk has no room for audio that waits to be heard."""

    def __init__(self) -> None:
        super().__init__("the server has no room to store the audio now", scope="audio")


class AdapterCapacity(CapacityError):
    """Raised when an adapter does not fit beside those that are in use or pinned."""

    def __init__(self, adapter: str, num_bytes: int, free_bytes: int, max_bytes: int) -> None:
        message = f"the adapter takes {num_bytes} bytes, and {free_bytes} of the {max_bytes} for adapters can be free"
        super().__init__(message, adapter=adapter, bytes=num_bytes, free_bytes=free_bytes, max_bytes=max_bytes)


class SlowReader(CapacityError):
    """Raised when the reader of a stream left its outbox full for too long."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the stream was not read for {waited_s:.0f} s", waited_s=f"{waited_s:.1f}")


class StateError(WorkerError):
    """Groups what depends on the state of the worker."""


class ModelLoading(StateError):
    """Raised when a request comes before the model is loaded."""

    def __init__(self, bytes_done: int = 0, bytes_total: int = 0) -> None:
        super().__init__("the model is still loading", bytes_done=bytes_done, bytes_total=bytes_total)


class ModelUnloading(StateError):
    """Raised when the worker is stopping: the request was not taken, or not finished within the grace."""

    def __init__(self) -> None:
        super().__init__("the model is being unloaded")


class TaskNotSupported(StateError):
    """Raised when the model is of another kind than the request."""

    def __init__(self, tasks: str) -> None:
        super().__init__(f"the model cannot do this; what it does: {tasks}", tasks=tasks)


class EndedError(WorkerError):
    """Groups requests that were ended before they were done."""


class DeadlineExceeded(EndedError):
    """Raised when the deadline of a request passed."""

    def __init__(self) -> None:
        super().__init__("the deadline passed")


class ClientGone(EndedError):
    """Raised when the caller cancelled its call or went away."""

    def __init__(self) -> None:
        super().__init__("the caller cancelled")


class StreamIdle(EndedError):
    """Raised when the caller of a stream sent nothing for too long."""

    def __init__(self, idle_s: float) -> None:
        super().__init__(f"no message came for {idle_s:g} seconds", idle_s=f"{idle_s:g}")


class CancelledByOperator(EndedError):
    """Raised when an operator ended the request."""

    def __init__(self, request_id: str) -> None:
        super().__init__("ended by an operator", request_id=request_id)


class LoadError(WorkerError):
    """Groups why a model could not be loaded."""


class ModelLoadFailed(LoadError):
    """Raised when a load fails for another reason than its checkpoint."""


class ModelExceedsMemory(LoadError):
    """Raised when a model takes more than models may take of this machine, before its first request."""

    def __init__(self, problem: str, needed_bytes: int, budget_bytes: int, **metadata: str) -> None:
        super().__init__(problem, needed_bytes=needed_bytes, budget_bytes=budget_bytes, **metadata)


class CheckpointRejected(LoadError):
    """Raised when the checkpoint is not there or of a kind that is not read."""


class CheckpointCorrupt(LoadError):
    """Raised when the checkpoint contradicts itself."""


class InternalError(WorkerError):
    """Raised when something failed that never should; the log has it under the incident."""

    def __init__(self, incident: str) -> None:
        super().__init__("internal error", incident=incident)
        self.incident = incident


def incident_of(error: BaseException, event: str) -> InternalError:
    """Log an unexpected exception with its trace and return what clients may know of it.

    Args:
        error: what was caught.
        event: name of the log line.
    """
    incident = secrets.token_hex(4)
    _log.error(event, exc_info=error, extra={"incident": incident})
    return InternalError(incident)


_log = logging.getLogger(__name__)
