"""One answer: asked for, printed as it comes, and cancelled on the server when the person stops it."""

import time
from contextlib import AbstractContextManager, nullcontext

from pomona.v1 import generation_pb2

from gateway.cli import output
from gateway.cli.connection import Connection

FINISH_WORDS = {
    generation_pb2.FINISH_REASON_MAX_TOKENS: "cut at the token limit",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "cut at the end of the context",
}


class Printer:
    """Prints the events of one stream and keeps its text.

    Args:
        as_json: print every event as a line of JSON instead.
        quiet: print nothing.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.text = ""
        self.statistics: dict[str, float] = {}
        self._as_json = as_json
        self._quiet = quiet
        self._asked_at = time.monotonic()
        self._first_after_s: float | None = None
        self._finish = ""

    def take(self, event: generation_pb2.StreamGenerateResponse) -> None:
        """Print what is new in `event`."""
        if self._as_json:
            output.emit(event)
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._take_delta(event.delta)
        elif kind == "sequence_finished":
            self._finish = FINISH_WORDS.get(event.sequence_finished.finish.reason, "")
        elif kind == "completed":
            self._complete(event.completed)

    def end(self) -> None:
        """End the line that the answer began."""
        if self._prints_text and self.text and not self.text.endswith("\n"):
            output.line()

    @property
    def _prints_text(self) -> bool:
        return not (self._as_json or self._quiet)

    def _take_delta(self, delta: generation_pb2.TokenDelta) -> None:
        if self._first_after_s is None:
            self._first_after_s = time.monotonic() - self._asked_at
        if delta.channel == generation_pb2.CHANNEL_REASONING:
            return
        self.text += delta.text
        if self._prints_text:
            output.write(delta.text)

    def _complete(self, completed: generation_pb2.GenerationCompleted) -> None:
        self.end()
        usage, timing = completed.usage, completed.timing
        self.statistics = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        parts = [f"{usage.prompt_tokens} prompt tokens", f"{usage.completion_tokens} tokens"]
        # The first token comes from the prompt's pass, so decoding made one less.
        if usage.completion_tokens > 1 and timing.decode_us:
            rate = (usage.completion_tokens - 1) * 1e6 / timing.decode_us
            self.statistics["tokens_per_second"] = rate
            parts.append(f"{rate:.1f} tokens/s")
        if self._first_after_s is not None:
            self.statistics["time_to_first_token_s"] = self._first_after_s
            parts.append(f"first token after {self._first_after_s:.2f} s")
        if not self._quiet:
            output.notice(f"[{', '.join(parts)}{'; ' * bool(self._finish)}{self._finish}]")


def stream_answer(connection: Connection, request: generation_pb2.StreamGenerateRequest, printer: Printer) -> None:
    """Ask for an answer and print it as it comes; leaving early, by Ctrl-C too, cancels it on the server."""
    call = connection.generation.StreamGenerate(request, timeout=connection.timeout_s, metadata=connection.metadata)
    try:
        events = iter(call)
        with _waiting(request.model):
            first = next(events, None)
        if first is not None:
            printer.take(first)
        for event in events:
            printer.take(event)
    except BaseException:
        printer.end()
        raise
    finally:
        call.cancel()


def _waiting(model: str) -> AbstractContextManager[object]:
    """Show on a terminal that the model has not begun yet: it may be loading, or busy."""
    console = output.console(stderr=True)
    return console.status(f"waiting for {model}") if console.is_terminal else nullcontext()
