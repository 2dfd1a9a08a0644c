"""What every stream of events must keep to, checked event by event: `generation.proto` says it."""

from typing import Any

from pomona.v1 import generation_pb2 as pb

OUTPUT = frozenset({"delta", "tool_call", "sequence_finished"})


class Contract:
    """Follows one stream.

    Attributes:
        faults: what was wrong, in words.
        is_started: the generation was admitted.
        num_tokens: in the deltas so far.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.is_started = False
        self.num_tokens = 0
        self._next_number = 0
        self._finished: set[int] = set()
        self._completed: pb.GenerationCompleted | None = None

    def add(self, event: pb.StreamGenerateResponse) -> None:
        """Take the next event."""
        if event.event_number != self._next_number:
            self.faults.append(f"event {event.event_number} came where {self._next_number} was due")
        self._next_number = event.event_number + 1
        if self._completed is not None:
            self.faults.append("an event came after completed")
        kind = event.WhichOneof("event")
        if kind == "started":
            self._fault_if(self.is_started, "started came twice")
            self.is_started = True
        elif kind in OUTPUT:
            self._add_output(getattr(event, kind), is_end=kind == "sequence_finished")
        elif kind == "completed":
            self._completed = event.completed

    def end(self, *, is_ok: bool) -> None:
        """Take the end of the stream."""
        if not is_ok:
            self._fault_if(self._completed is not None, "a failed stream had completed")
            return
        if self._completed is None:
            self.faults.append("an OK stream had no completed")
            return
        self._fault_if(not self._finished, "an OK stream had no sequence_finished")
        told = self._completed.usage.completion_tokens
        self._fault_if(self.num_tokens > told, f"{self.num_tokens} tokens came of {told}")

    def _add_output(self, output: Any, *, is_end: bool) -> None:
        self._fault_if(not self.is_started, "output came before started")
        self._fault_if(output.sequence_index in self._finished, "output came after its sequence had finished")
        if is_end:
            self._finished.add(output.sequence_index)
        else:
            self.num_tokens += getattr(output, "token_count", 0)

    def _fault_if(self, is_wrong: bool, words: str) -> None:
        if is_wrong:
            self.faults.append(words)
