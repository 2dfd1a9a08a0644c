"""Answers of a fake worker as the contract says, which tell whose they are; some of them with a defect."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as g

BEGUN = (("x-pomona-begun", "1"),)


class Teller:
    """Answers for one worker and counts its answers."""

    def __init__(self, model: str, instance_id: str) -> None:
        self._resolved = common_pb2.ResolvedModel(model=model, worker_instance_id=instance_id)
        self._count = 0

    async def tell(self, num_deltas: int, step: Mapping[str, Any], context: Any) -> AsyncIterator[bytes]:
        """Answer a generation: with the events of a stream, or with one message where no delta is asked for."""
        self._count += 1
        defect = step.get("defect", "") if self._count % step.get("every", 1) == 0 else ""
        resolved = common_pb2.ResolvedModel(model="another") if defect == "model" else self._resolved
        request_id = dict(context.invocation_metadata()).get("x-pomona-request-id", "")
        await context.send_initial_metadata(BEGUN)
        if not num_deltas:
            yield g.GenerateResponse(resolved_model=resolved, request_id=request_id).SerializeToString()
            return
        async for event in _spoilt(answer(resolved, request_id, num_deltas), defect):
            if event.event_number and step.get("interval_s"):
                await asyncio.sleep(step["interval_s"])
            yield event.SerializeToString()


def answer(resolved: common_pb2.ResolvedModel, request_id: str, num_deltas: int) -> list[g.StreamGenerateResponse]:
    """Return the events of a whole answer; each delta says which model it is of, and its place."""
    finish = g.Finish(reason=g.FINISH_REASON_EOS)
    texts = [f"{resolved.model}#{number} " for number in range(num_deltas)]
    events = [
        g.StreamGenerateResponse(started=g.GenerationStarted(resolved_model=resolved, request_id=request_id)),
        *(g.StreamGenerateResponse(delta=g.TokenDelta(text=text, token_count=1)) for text in texts),
        g.StreamGenerateResponse(sequence_finished=g.SequenceFinished(finish=finish)),
        g.StreamGenerateResponse(completed=g.GenerationCompleted(usage=common_pb2.Usage(completion_tokens=num_deltas))),
    ]
    for number, event in enumerate(events):
        event.event_number = number
    return events


async def _spoilt(events: list[g.StreamGenerateResponse], defect: str) -> AsyncIterator[g.StreamGenerateResponse]:
    for number, event in enumerate(events):
        if defect == "gap" and number == 1:
            continue
        if defect == "silent" and event.HasField("completed"):
            return
        yield event
        if defect == "twice" and number == 1:
            yield event
