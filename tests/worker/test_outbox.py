import asyncio
import functools

import pytest

from tests.support.waiting import eventually
from worker.events import (
    Alternative,
    Completed,
    Event,
    Failed,
    FinishReason,
    PrefillProgress,
    SequenceFinished,
    Started,
    TextDelta,
    Timing,
    TokenDetail,
    Usage,
    Waiting,
)
from worker.outbox import DETAIL_BYTES, Outbox

FINISHED = SequenceFinished(FinishReason.EOS)
COMPLETED = Completed(Usage(), Timing())


def put(outbox: Outbox, *events: Event) -> None:
    for event in events:
        outbox.charge(event)
        outbox.put(event)


async def take(outbox: Outbox) -> Event:
    return await asyncio.wait_for(outbox.take(), 5)


async def test_events_come_in_order():
    outbox = Outbox(100)
    put(outbox, Started(1, 2), TextDelta("a"), FINISHED, COMPLETED)
    assert [await take(outbox) for _ in range(4)] == [Started(1, 2), TextDelta("a"), FINISHED, COMPLETED]


async def test_waiting_deltas_merge():
    outbox = Outbox(100)
    put(outbox, TextDelta("a", (TokenDetail(1, b"a"),), 1), TextDelta("b", (TokenDetail(2, b"b"),), 2), FINISHED)
    assert await take(outbox) == TextDelta("ab", (TokenDetail(1, b"a"), TokenDetail(2, b"b")), 3)


async def test_only_the_last_progress_waits():
    outbox = Outbox(100)
    put(outbox, PrefillProgress(1, 3), PrefillProgress(2, 3), TextDelta("a"))
    assert [await take(outbox), await take(outbox)] == [PrefillProgress(2, 3), TextDelta("a")]


async def test_only_the_last_place_waits():
    outbox = Outbox(100)
    put(outbox, Waiting(4), Waiting(2), Started(1, 2))
    assert [await take(outbox), await take(outbox)] == [Waiting(2), Started(1, 2)]


async def test_taking_waits_for_an_event():
    outbox = Outbox(100)
    reader = asyncio.create_task(take(outbox))
    await asyncio.sleep(0)
    assert not reader.done()
    put(outbox, TextDelta("a"))
    assert await reader == TextDelta("a")


async def test_it_is_full_from_its_bound_of_bytes_until_some_are_taken():
    outbox = Outbox(3)
    put(outbox, TextDelta("č"))
    assert not outbox.is_full
    outbox.charge(TextDelta("b"))
    assert outbox.is_full
    await take(outbox)
    assert outbox.waiting_bytes == 1


async def test_token_details_count_too():
    outbox = Outbox(100)
    put(outbox, TextDelta("", tuple(TokenDetail(1, b"") for _ in range(10)), 10))
    assert outbox.is_full


async def test_alternatives_of_a_token_count_too():
    outbox = Outbox(100)
    token = TokenDetail(1, b"ab", -0.5, (Alternative(1, b"ab", -0.5), Alternative(2, b"c", -1.5)))
    put(outbox, TextDelta("ab", (token,), 1))
    assert outbox.waiting_bytes == 2 + 3 * DETAIL_BYTES + 5
    await take(outbox)
    assert outbox.waiting_bytes == 0


async def test_room_is_announced_once_it_is_no_longer_full():
    outbox, calls = Outbox(2), list[int]()
    outbox.notify_room(functools.partial(calls.append, 1))
    put(outbox, TextDelta("a"))
    await take(outbox)
    assert calls == []
    put(outbox, TextDelta("ab"))
    await take(outbox)
    assert calls == [1]


async def test_a_delta_is_held_until_it_has_enough_tokens():
    outbox = Outbox(100, coalesce_tokens=3)
    reader = asyncio.create_task(take(outbox))
    for text in "ab":
        put(outbox, TextDelta(text, (), 1))
        await asyncio.sleep(0)
    assert not reader.done()
    put(outbox, TextDelta("c", (), 1))
    assert await reader == TextDelta("abc", (), 3)


async def test_a_delta_is_held_for_no_longer_than_the_interval():
    outbox = Outbox(100, coalesce_tokens=100, coalesce_interval_s=0.02)
    put(outbox, TextDelta("a", (), 1))
    assert await take(outbox) == TextDelta("a", (), 1)


@pytest.mark.parametrize("event", [FINISHED, Failed(ValueError(), Usage())], ids=["finished", "failed"])
async def test_what_follows_lets_a_held_delta_go(event: Event):
    outbox = Outbox(100, coalesce_tokens=100)
    put(outbox, TextDelta("a", (), 1), event)
    assert [await take(outbox), await take(outbox)] == [TextDelta("a", (), 1), event]


async def test_a_full_outbox_lets_a_held_delta_go():
    outbox = Outbox(2, coalesce_tokens=100)
    put(outbox, TextDelta("ab", (), 1))
    assert await take(outbox) == TextDelta("ab", (), 1)


async def test_nothing_follows_the_last_event():
    outbox = Outbox(100)
    put(outbox, COMPLETED, TextDelta("late"), Failed(ValueError(), Usage()))
    assert await take(outbox) == COMPLETED
    reader = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not reader.done()
    reader.cancel()
    await eventually(reader.done)


async def test_a_closed_outbox_is_never_full_and_lets_its_row_go_on():
    outbox, calls = Outbox(1), list[int]()
    outbox.notify_room(functools.partial(calls.append, 1))
    put(outbox, TextDelta("abc"))
    outbox.close()
    put(outbox, TextDelta("abc"))
    assert not outbox.is_full
    assert calls == [1]
