"""One answer: asked for, printed as it comes, and cancelled on the server when the person stops it."""

import time
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pomona.v1 import common_pb2, generation_pb2

from gateway.cli import logprobs, output
from gateway.cli.connection import Connection

FINISH_WORDS = {
    generation_pb2.FINISH_REASON_MAX_TOKENS: "cut at the token limit",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "cut at the end of the context",
}


@dataclass(slots=True)
class _Sequence:
    """One of the answers while it comes; `finish` is a word about its end where there is one to say."""

    text: str = ""
    tokens: list[generation_pb2.TokenInfo] = field(default_factory=list[generation_pb2.TokenInfo])
    is_finished: bool = False
    finish: str = ""


class Printer:
    """Prints the events of one stream and keeps its text.

    Args:
        as_json: print every event as a line of JSON instead.
        quiet: print nothing.
        num_sequences: how many answers come. The first is printed as it comes, each other once those before are done.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, num_sequences: int = 1) -> None:
        self.statistics: dict[str, float] = {}
        self._as_json = as_json
        self._quiet = quiet
        self._num_sequences = num_sequences
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)
        self._shown = 0
        self._asked_at = time.monotonic()
        self._first_after_s: float | None = None

    @property
    def text(self) -> str:
        """The first answer so far."""
        return self._sequences[0].text

    def take(self, event: generation_pb2.StreamGenerateResponse) -> None:
        """Print what is new in `event`."""
        if self._as_json:
            output.emit(event)
        kind = event.WhichOneof("event")
        if kind == "started":
            self._show(0)
        elif kind == "delta":
            self._take_delta(event.delta)
        elif kind == "sequence_finished":
            self._finish(event.sequence_finished)
        elif kind == "completed":
            self._complete(event.completed)

    def end(self) -> None:
        """Print what waits for its turn, and end the line that the last answer began."""
        for index in sorted(index for index, each in self._sequences.items() if index > self._shown and each.text):
            self._show(index)
        self._end_line()

    @property
    def _prints_text(self) -> bool:
        return not (self._as_json or self._quiet)

    def _take_delta(self, delta: generation_pb2.TokenDelta) -> None:
        if self._first_after_s is None:
            self._first_after_s = time.monotonic() - self._asked_at
        if delta.channel == generation_pb2.CHANNEL_REASONING:
            return
        sequence = self._sequences[delta.sequence_index]
        sequence.text += delta.text
        sequence.tokens += [token for token in delta.tokens if token.HasField("logprob")]
        if self._prints_text and delta.sequence_index == self._shown:
            output.write(delta.text)

    def _finish(self, finished: generation_pb2.SequenceFinished) -> None:
        sequence = self._sequences[finished.sequence_index]
        sequence.is_finished, sequence.finish = True, FINISH_WORDS.get(finished.finish.reason, "")
        while self._sequences[self._shown].is_finished and self._shown + 1 < self._num_sequences:
            self._show(self._shown + 1)

    def _show(self, index: int) -> None:
        """Print an answer so far, and from now on what is new in it."""
        self._end_line()
        self._shown = index
        if self._prints_text and self._num_sequences > 1:
            output.line(f"--- {index + 1} of {self._num_sequences}")
            output.write(self._sequences[index].text)

    def _end_line(self) -> None:
        text = self._sequences[self._shown].text
        if self._prints_text and text and not text.endswith("\n"):
            output.line()

    def _complete(self, completed: generation_pb2.GenerationCompleted) -> None:
        self.end()
        usage = completed.usage
        self.statistics = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        parts = [f"{usage.prompt_tokens} prompt tokens", f"{usage.completion_tokens} tokens"]
        # The first token of each answer comes from the prompt's pass.
        num_decoded = usage.completion_tokens - self._num_sequences
        if num_decoded > 0 and completed.timing.decode_us:
            rate = num_decoded * 1e6 / completed.timing.decode_us
            self.statistics["tokens_per_second"] = rate
            parts.append(f"{rate:.1f} tokens/s")
        if self._first_after_s is not None:
            self.statistics["time_to_first_token_s"] = self._first_after_s
            parts.append(f"first token after {self._first_after_s:.2f} s")
        if not self._quiet:
            self._print_logprobs()
            output.notice(f"[{'; '.join([', '.join([*parts, *_savings(usage)]), *self._endings()])}]")

    def _print_logprobs(self) -> None:
        tables = [] if self._as_json else [each.tokens for _, each in sorted(self._sequences.items())]
        for tokens in filter(None, tables):
            output.table(logprobs.HEADERS, logprobs.rows(tokens), stderr=True)

    def _endings(self) -> list[str]:
        """Say what there is to say of the ends, and of how many answers where there are several."""
        counts = Counter(each.finish for each in self._sequences.values() if each.finish)
        if self._num_sequences == 1:
            return list(counts)
        return [f"{count} of {self._num_sequences} {word}" for word, count in counts.items()]


def _savings(usage: common_pb2.Usage) -> list[str]:
    """Say what need not be computed."""
    said: list[str] = []
    if usage.cached_prompt_tokens:
        said.append(f"{usage.cached_prompt_tokens} prompt tokens cached")
    if usage.HasField("drafted_tokens"):
        said.append(f"{usage.accepted_draft_tokens} of {usage.drafted_tokens} guesses right")
    return said


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
