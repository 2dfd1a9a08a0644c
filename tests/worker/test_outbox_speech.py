"""What of speech waits for a slow reader: nothing that is overtaken, and everything that is final."""

from __future__ import annotations

from worker.events import Event, SpeechProgress, SpeechSegment, SpokenWord, VoiceChange
from worker.outbox import SPEECH_BYTES, Outbox


def put(outbox: Outbox, *events: Event) -> None:
    for event in events:
        outbox.charge(event)
        outbox.put(event)


async def taken(outbox: Outbox, num_events: int) -> list[Event]:
    return [await outbox.take() for _ in range(num_events)]


def interim(segment_id: int, text: str) -> SpeechSegment:
    return SpeechSegment(segment_id, 0.0, 1.0, "", text, is_final=False)


def final(segment_id: int, text: str = "done") -> SpeechSegment:
    return SpeechSegment(segment_id, 0.0, 1.0, text)


async def test_an_interim_text_takes_the_place_of_the_one_before():
    outbox = Outbox(1000)
    put(outbox, interim(0, "a"), interim(1, "x"), interim(0, "ab"))
    assert await taken(outbox, 2) == [interim(1, "x"), interim(0, "ab")]
    assert outbox.waiting_bytes == 0


async def test_a_final_segment_takes_the_place_of_its_interim_texts_and_stays():
    outbox = Outbox(1000)
    put(outbox, interim(0, "a"), final(0), final(1), interim(2, "c"))
    assert await taken(outbox, 3) == [final(0), final(1), interim(2, "c")]


async def test_of_progress_only_the_last_waits():
    outbox = Outbox(1000)
    put(outbox, SpeechProgress(1, 0), final(0), SpeechProgress(2, 1), VoiceChange(True, 1.0), SpeechProgress(3, 2))
    assert await taken(outbox, 3) == [final(0), VoiceChange(True, 1.0), SpeechProgress(3, 2)]


async def test_hours_of_interim_texts_take_no_more_than_one():
    outbox = Outbox(10_000)
    for place in range(5_000):
        put(outbox, interim(0, "word " * (place % 50)), SpeechProgress(place, place))
    assert outbox.waiting_bytes < 400
    assert len(await taken(outbox, 2)) == 2
    assert outbox.waiting_bytes == 0


async def test_segments_fill_it_by_their_texts_and_words():
    segment = SpeechSegment(0, 0.0, 1.0, "four", words=(SpokenWord("four", 0.0, 1.0),), alternatives=(("five", -1.0),))
    size = SPEECH_BYTES + 4 + 4 + SPEECH_BYTES + 4
    outbox = Outbox(size)
    put(outbox, segment)
    assert (outbox.waiting_bytes, outbox.is_full) == (size, True)
    freed: list[int] = []
    outbox.notify_room(lambda: freed.append(outbox.waiting_bytes))
    await outbox.take()
    assert freed == [0]


async def test_changes_of_the_voice_are_counted():
    outbox = Outbox(10 * SPEECH_BYTES)
    put(outbox, *(VoiceChange(place % 2 == 0, place) for place in range(10)))
    assert outbox.is_full
