"""Several sequences on their way to one reader: each keeps its own text, tokens and order."""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from worker.events import (
    Channel,
    Completed,
    Event,
    FinishReason,
    SequenceFinished,
    Started,
    TextDelta,
    Timing,
    TokenDetail,
    ToolCallDelta,
    Usage,
)
from worker.outbox import Outbox

COMPLETED = Completed(Usage(), Timing())


def put(outbox: Outbox, *events: Event) -> None:
    for event in events:
        outbox.charge(event)
        outbox.put(event)


async def take(outbox: Outbox, count: int) -> list[Event]:
    async with asyncio.timeout(5):
        return [await outbox.take() for _ in range(count)]


def delta(index: int, text: str) -> TextDelta:
    return TextDelta(text, (), 1, index)


def finished(index: int) -> SequenceFinished:
    return SequenceFinished(FinishReason.EOS, sequence_index=index)


async def test_waiting_deltas_merge_with_those_of_their_own_sequence():
    outbox = Outbox(100)
    put(outbox, delta(1, "a"), delta(0, "x"), delta(1, "b"), delta(0, "y"))
    assert await take(outbox, 2) == [TextDelta("ab", (), 2, 1), TextDelta("xy", (), 2, 0)]


async def test_each_sequence_is_held_until_it_has_enough_tokens_itself():
    outbox = Outbox(100, coalesce_tokens=2)
    put(outbox, delta(0, "x"), delta(1, "a"))
    reader = asyncio.create_task(take(outbox, 1))
    await asyncio.sleep(0)
    assert not reader.done()
    put(outbox, delta(1, "b"))
    assert await reader == [TextDelta("ab", (), 2, 1)]
    put(outbox, delta(0, "y"))
    assert await take(outbox, 1) == [TextDelta("xy", (), 2, 0)]


async def test_each_sequence_is_held_for_no_longer_than_the_interval():
    now = 0.0
    outbox = Outbox(100, coalesce_interval_s=1.0, clock=lambda: now)
    put(outbox, delta(0, "x"))
    now = 0.6
    put(outbox, delta(1, "a"))
    now = 1.2
    assert await take(outbox, 1) == [delta(0, "x")]
    reader = asyncio.create_task(take(outbox, 1))
    await asyncio.sleep(0)
    assert not reader.done()
    now = 1.7
    put(outbox, delta(2, "k"))
    assert await reader == [delta(1, "a")]


async def test_the_end_of_a_sequence_comes_behind_its_text():
    outbox = Outbox(100, coalesce_tokens=100)
    put(outbox, delta(0, "x"), delta(1, "a"), finished(1), delta(0, "y"), finished(0), COMPLETED)
    assert await take(outbox, 6) == [
        delta(0, "x"),
        delta(1, "a"),
        finished(1),
        delta(0, "y"),
        finished(0),
        COMPLETED,
    ]


async def test_a_full_outbox_lets_all_sequences_go():
    outbox = Outbox(2, coalesce_tokens=100)
    put(outbox, delta(0, "x"), delta(1, "a"))
    assert await take(outbox, 2) == [delta(0, "x"), delta(1, "a")]


def thought(index: int, text: str) -> TextDelta:
    return TextDelta(text, (), 1, index, Channel.REASONING)


def call(index: int, number: int = 0) -> ToolCallDelta:
    return ToolCallDelta(number, f"call_{index}_{number}", "f", "{}", index)


async def test_deltas_of_different_channels_stay_apart_and_in_order():
    outbox = Outbox(1000, coalesce_tokens=100)
    put(outbox, thought(0, "a"), thought(0, "b"), thought(1, "k"), delta(0, "x"), delta(0, "y"), finished(0))
    assert await take(outbox, 4) == [
        TextDelta("ab", (), 2, 0, Channel.REASONING),
        thought(1, "k"),
        TextDelta("xy", (), 2, 0),
        finished(0),
    ]


async def test_a_call_comes_behind_the_text_before_it_and_holds_up_nobody_elses():
    outbox = Outbox(1000, coalesce_tokens=100)
    put(outbox, delta(0, "x"), delta(1, "a"), call(0), delta(0, "y"), call(0, 1))
    assert await take(outbox, 4) == [delta(0, "x"), call(0), delta(0, "y"), call(0, 1)]
    put(outbox, delta(1, "b"), finished(1))
    assert await take(outbox, 2) == [TextDelta("ab", (), 2, 1), finished(1)]


async def test_a_call_takes_room():
    outbox = Outbox(4)
    put(outbox, call(0))
    assert outbox.waiting_bytes == len("f{}")
    await take(outbox, 1)
    assert outbox.waiting_bytes == 0


def script(rng: random.Random) -> list[Event]:
    """Return the events of a request: each sequence's in order, those of all mixed."""
    left = [
        deque(
            [
                *(
                    call(index, step)
                    if rng.random() < 0.1
                    else TextDelta(
                        f"{index}.{step} ", (TokenDetail(step, bytes([index])),), 1, index, rng.choice(list(Channel))
                    )
                    for step in range(rng.randrange(12))
                ),
                finished(index),
            ]
        )
        for index in range(rng.randint(1, 5))
    ]
    events: list[Event] = [Started(1, 2)]
    while any(left):
        events.append(rng.choice([each for each in left if each]).popleft())
    return [*events, COMPLETED]


def summary(events: Sequence[Event]) -> dict[str, Any]:
    """Return what merging must not change: what each sequence says up to its end, and the order of all other events."""
    texts: defaultdict[int, str] = defaultdict(str)
    tokens: defaultdict[int, list[TokenDetail]] = defaultdict(list)
    counts: defaultdict[int, int] = defaultdict(int)
    for event in events:
        if isinstance(event, TextDelta):
            texts[event.sequence_index] += "".join(f"{event.channel.value} {part};" for part in event.text.split())
            tokens[event.sequence_index] += event.tokens
            counts[event.sequence_index] += event.token_count
        elif isinstance(event, SequenceFinished | ToolCallDelta):
            texts[event.sequence_index] += f"|{event}"
    others = [event for event in events if not isinstance(event, TextDelta | ToolCallDelta)]
    return {"texts": dict(texts), "tokens": dict(tokens), "counts": dict(counts), "others": others}


async def changed(kind: type[Outbox], seed: int) -> bool:
    """Say whether a reader of random pace gets anything else than what was put."""
    rng = random.Random(seed)
    events = script(rng)
    bounds = {"coalesce_tokens": rng.choice([0, 3, 50]), "coalesce_interval_s": rng.choice([0.0, 0.001])}
    outbox = kind(rng.choice([1, 40, 1000]), **bounds)  # pyright: ignore[reportArgumentType]

    async def write() -> None:
        for event in events:
            put(outbox, event)
            for _ in range(rng.choice([0, 0, 1, 3])):
                await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    taken: list[Event] = []
    async with asyncio.timeout(5):
        while not taken or taken[-1] != COMPLETED:
            taken.append(await outbox.take())
            for _ in range(rng.choice([0, 2])):
                await asyncio.sleep(0)
    await writer
    return summary(taken) != summary(events) or outbox.waiting_bytes != 0


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_the_paces_every_sequence_arrives_whole_and_in_order(seed: int):
    assert not await changed(Outbox, seed)


class Mixing(Outbox):
    """Puts the deltas of all sequences into the first one's."""

    def put(self, event: Event) -> None:
        super().put(TextDelta(event.text, event.tokens, event.token_count) if isinstance(event, TextDelta) else event)


class Blending(Outbox):
    """Puts the deltas of all channels into one."""

    def put(self, event: Event) -> None:
        super().put(replace(event, channel=Channel.CONTENT) if isinstance(event, TextDelta) else event)


class Late(Outbox):
    """Lets a delta go only behind what follows it."""

    def put(self, event: Event) -> None:
        held, self._held = self._held, {}
        super().put(event)
        self._held = {**held, **self._held}


@pytest.mark.parametrize("kind", [Mixing, Blending, Late])
async def test_the_random_paces_catch_an_outbox_that_mixes_or_reorders(kind: type[Outbox]):
    caught = [seed for seed in range(40) if await changed(kind, seed)]
    assert len(caught) > 10
