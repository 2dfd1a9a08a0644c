"""What a client saw of one request, held against what the contract promises of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import generation_pb2 as g

# What may become of a request while workers are killed, stopped and unloaded under it.
LISTED = {
    "UNAVAILABLE": frozenset(
        {
            "WORKER_DIED",
            "WORKER_STALLED",
            "WORKER_RESTARTING",
            "MODEL_BACKING_OFF",
            "MODEL_UNLOADING",
            "MODEL_LOADING",
            "SERVER_DRAINING",
        }
    ),
    "RESOURCE_EXHAUSTED": frozenset({"QUEUE_FULL"}),
}


@dataclass(slots=True)
class History:
    """The history of one request, checked as it comes.

    Attributes:
        model: that was asked for.
        request_id: of the request.
        num_events: that came.
        wrong: what breaks the contract, one line each.
        outcome: OK, a reason, or the name of a code.
    """

    model: str
    request_id: str
    num_events: int = 0
    wrong: list[str] = field(default_factory=list[str])
    outcome: str = "OK"
    _is_complete: bool = False
    _num_deltas: int = 0

    def answered(self, body: bytes) -> None:
        """Take a unary answer."""
        answer = g.GenerateResponse.FromString(body)
        self._is_mine(answer.resolved_model.model, answer.request_id)
        self._is_complete = True

    def take(self, body: bytes) -> None:
        """Take an event of a stream."""
        event = g.StreamGenerateResponse.FromString(body)
        kind = event.WhichOneof("event")
        if self._is_complete:
            self.wrong.append("an event after the last")
        if event.event_number != self.num_events:
            self.wrong.append("event numbers have a gap or repeat")
        if (kind == "started") is not (self.num_events == 0):
            self.wrong.append("a stream does not begin with its start")
        self.num_events += 1
        if kind == "started":
            self._is_mine(event.started.resolved_model.model, event.started.request_id)
        elif kind == "delta":
            self._delta(event.delta.text)
        elif kind == "completed":
            self._completed(event.completed.usage.completion_tokens)

    def _delta(self, text: str) -> None:
        if text != f"{self.model}#{self._num_deltas} ":
            self.wrong.append("a delta is another model's or out of its order")
        self._num_deltas += 1

    def _completed(self, num_tokens: int) -> None:
        self._is_complete = True
        if num_tokens != self._num_deltas:
            self.wrong.append("the deltas do not add up to the usage")

    def ended(self) -> None:
        """Take the status OK."""
        if not self._is_complete:
            self.wrong.append("it ends well without its last event")

    def failed(self, code: str, trailers: Mapping[str, Any]) -> None:
        """Take another status."""
        info = error_info(trailers.get("grpc-status-details-bin", b""))
        self.outcome = info.reason or code
        if info.reason not in LISTED.get(code, ()):
            self.wrong.append(f"it ends with {code} {info.reason or 'without a reason'}")
        if self._is_complete and self.num_events:
            self.wrong.append("it fails after its last event")
        if info.metadata.get("model", self.model) != self.model:
            self.wrong.append("its failure is another model's")
        sent = info.metadata.get("events_sent")
        if sent is not None and int(sent) != self.num_events:
            self.wrong.append("its failure tells another number of events than came")

    def _is_mine(self, model: str, request_id: str) -> None:
        if model != self.model:
            self.wrong.append("another model answered")
        if request_id != self.request_id:
            self.wrong.append("another request was answered")


def error_info(details: bytes) -> error_details_pb2.ErrorInfo:
    """Return the ErrorInfo of a status; an empty one where it has none."""
    info = error_details_pb2.ErrorInfo()
    for packed in status_pb2.Status.FromString(details).details:
        packed.Unpack(info)
    return info
