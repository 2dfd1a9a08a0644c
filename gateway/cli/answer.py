"""One answer: asked for, printed as it comes, and cancelled on the server when the person stops it."""

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from pomona.v1 import generation_pb2

from gateway.cli import logprobs, output
from gateway.cli.connection import Connection
from gateway.cli.screen import Screen
from gateway.cli.sequence import Kind, Sequence
from gateway.cli.summary import FINISH_WORDS, Summary


class Printer:
    """Prints the events of one stream and keeps its text.

    Args:
        as_json: print every event as a line of JSON instead.
        quiet: print nothing.
        num_sequences: how many answers come. The first is printed as it comes, each other once those before are done.
        hide_reasoning: print no reasoning, in JSON neither.
    """

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, num_sequences: int = 1, hide_reasoning: bool = False
    ) -> None:
        self.statistics: dict[str, float] = {}
        self._as_json = as_json
        self._quiet = quiet
        self._num_sequences = num_sequences
        self._hides_reasoning = hide_reasoning
        self._screen = Screen(hide_reasoning=hide_reasoning)
        self._sequences: defaultdict[int, Sequence] = defaultdict(Sequence)
        self._shown = 0
        self._asked_at = time.monotonic()
        self._first_after_s: float | None = None

    @property
    def first(self) -> Sequence:
        """The first answer so far."""
        return self._sequences[0]

    @property
    def text(self) -> str:
        """The text of the first answer so far."""
        return self.first.text

    def take(self, event: generation_pb2.StreamGenerateResponse) -> None:
        """Print what is new in `event`."""
        if self._as_json and not (self._hides_reasoning and _is_reasoning(event)):
            output.emit(event)
        kind = event.WhichOneof("event")
        if kind == "started":
            self._show(0)
        elif kind == "delta":
            self._note_first()
            delta = event.delta
            self._print(delta.sequence_index, self._sequences[delta.sequence_index].take_delta(delta))
        elif kind == "tool_call":
            self._note_first()
            call = event.tool_call
            self._print(call.sequence_index, self._sequences[call.sequence_index].take_call(call))
        elif kind == "sequence_finished":
            self._finish(event.sequence_finished)
        elif kind == "completed":
            self._complete(event.completed)

    def end(self) -> None:
        """Print what waits for its turn, and end the line that the last answer began."""
        for index in sorted(index for index, each in self._sequences.items() if index > self._shown and each.parts):
            self._show(index)
        self._screen.end()

    @property
    def _prints_text(self) -> bool:
        return not (self._as_json or self._quiet)

    def _print(self, index: int, parts: Iterable[tuple[Kind, str]]) -> None:
        """Print new parts of an answer, unless its turn comes later."""
        for kind, text in parts:
            if self._prints_text and index == self._shown:
                self._screen.write(kind, text)

    def _note_first(self) -> None:
        if self._first_after_s is None:
            self._first_after_s = time.monotonic() - self._asked_at

    def _finish(self, finished: generation_pb2.SequenceFinished) -> None:
        sequence = self._sequences[finished.sequence_index]
        self._print(finished.sequence_index, sequence.close_call())
        sequence.is_finished, sequence.finish = True, FINISH_WORDS.get(finished.finish.reason, "")
        while self._sequences[self._shown].is_finished and self._shown + 1 < self._num_sequences:
            self._show(self._shown + 1)

    def _show(self, index: int) -> None:
        """Print an answer so far, and from now on what is new in it."""
        self._screen.end()
        self._shown = index
        if self._prints_text and self._num_sequences > 1:
            output.line(f"--- {index + 1} of {self._num_sequences}")
            self._print(index, tuple(self._sequences[index].parts))

    def _complete(self, completed: generation_pb2.GenerationCompleted) -> None:
        self.end()
        finishes = [each.finish for each in self._sequences.values() if each.finish]
        summary = Summary(completed, self._first_after_s, self._num_sequences, finishes)
        self.statistics = summary.statistics()
        if not self._quiet:
            self._print_logprobs()
            output.notice(summary.line())

    def _print_logprobs(self) -> None:
        tables = [] if self._as_json else [each.tokens for _, each in sorted(self._sequences.items())]
        for tokens in filter(None, tables):
            output.table(logprobs.HEADERS, logprobs.rows(tokens), stderr=True)


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


def _is_reasoning(event: generation_pb2.StreamGenerateResponse) -> bool:
    return event.HasField("delta") and event.delta.channel == generation_pb2.CHANNEL_REASONING


def _waiting(model: str) -> AbstractContextManager[object]:
    """Show on a terminal that the model has not begun yet: it may be loading, or busy."""
    console = output.console(stderr=True)
    return console.status(f"waiting for {model}") if console.is_terminal else nullcontext()
