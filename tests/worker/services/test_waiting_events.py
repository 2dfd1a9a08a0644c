"""A reader that asks for it is told of its place in the line."""

from pathlib import Path

from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from tests.support.worker_client import request, stamps
from worker.errors import DeadlineExceeded
from worker.events import Completed, Failed, FinishReason, SequenceFinished, Started, Timing, Usage, Waiting

from .scripted import Script, serving

EVENTS = (
    Waiting(3),
    Started(3, 11),
    SequenceFinished(FinishReason.EOS, eos_token_id=0),
    Completed(Usage(3, 1), Timing()),
)


def asking(*, waiting_events: bool = True) -> pb.StreamGenerateRequest:
    spec = pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[1, 2, 3]))
    options = pb.StreamOptions(waiting_events=waiting_events)
    return request(pb.StreamGenerateRequest, spec=spec, stream_options=options)


def script(*events: object) -> Script:
    made = Script(events)  # pyright: ignore[reportArgumentType]
    made.gate.set()
    return made


async def test_a_place_in_the_line_is_the_first_event(tmp_path: Path) -> None:
    async with serving(tmp_path, script(*EVENTS)) as services:
        events = await services.client.stream(asking())
    assert events[0].waiting == pb.Waiting(reason=pb.Waiting.REASON_QUEUED, queue_position=3)
    assert [event.WhichOneof("event") for event in events[1:]] == ["started", "sequence_finished", "completed"]
    assert [event.event_number for event in events] == [0, 1, 2, 3]


async def test_the_engine_is_told_who_asks(tmp_path: Path) -> None:
    served = script(*EVENTS)
    async with serving(tmp_path, served) as services:
        for asks in (True, False):
            await services.client.stream(asking(waiting_events=asks))
    assert [wanted.waiting_events for wanted in served.requests] == [True, False]


async def test_what_a_reader_was_told_comes_behind_what_says_that_the_call_has_begun(tmp_path: Path) -> None:
    failed = Failed(DeadlineExceeded(), Usage())
    async with serving(tmp_path, script(Waiting(3), failed)) as services:
        asked = asking()
        call = services.client.call(pb.StreamGenerateRequest, asked.SerializeToString(), stamps(asked))
        assert dict(await call.initial_metadata()) == {"x-pomona-begun": "1"}
        call.cancel()
    async with serving(tmp_path, script(failed)) as services:
        call = services.client.call(pb.StreamGenerateRequest, asked.SerializeToString(), stamps(asked))
        assert dict(await call.initial_metadata()) == {}
        call.cancel()
