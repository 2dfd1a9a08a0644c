"""Who is let in, who waits, who is refused."""

import asyncio

import pytest

from gateway.admission import Admission, AdmissionLimits, OwnLimits
from gateway.errors import DeadlineExceeded, QueueFull, ServerDraining
from gateway.principal import CallerLimits, Principal
from tests.support.waiting import eventually


def admission(total: int = 10, per_model: int = 10, waiting: int = 10, wait_s: float = 5.0) -> Admission:
    return Admission(AdmissionLimits(total, per_model, waiting, wait_s))


async def started(*coroutines: object) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(one) for one in coroutines]  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_admits_no_more_of_a_model_than_its_limit() -> None:
    gate = admission(per_model=2, waiting=0)
    await gate.enter("a")
    await gate.enter("a")
    with pytest.raises(QueueFull) as caught:
        await gate.enter("a")
    assert (caught.value.scope, caught.value.depth) == ("a", 2)
    await gate.enter("b")


async def test_admits_no_more_in_all_than_the_limit() -> None:
    gate = admission(total=2, waiting=0)
    await gate.enter("a")
    await gate.enter("b")
    with pytest.raises(QueueFull) as caught:
        await gate.enter("c")
    assert caught.value.scope == "the server"


async def test_a_place_that_is_left_goes_to_who_waits() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    (waiting,) = await started(gate.enter("a"))
    assert not waiting.done()
    gate.leave("a")
    await waiting


async def test_the_highest_priority_goes_first_and_equals_keep_their_order() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    order: list[str] = []

    async def enter(name: str, priority: int) -> None:
        await gate.enter("a", priority)
        order.append(name)

    tasks = await started(enter("low", -1), enter("first", 0), enter("second", 0), enter("high", 5))
    for count in range(1, 5):
        gate.leave("a")
        await eventually(lambda count=count: len(order) == count)
    assert order == ["high", "first", "second", "low"]
    await asyncio.gather(*tasks)


async def test_one_full_model_does_not_hold_up_another_that_waits() -> None:
    gate = admission(total=2, per_model=1)
    await gate.enter("a")
    await gate.enter("b")
    first, second = await started(gate.enter("a"), gate.enter("c"))
    gate.leave("b")
    await second
    assert not first.done()
    gate.leave("a")
    await first


async def test_the_room_to_wait_in_is_bounded() -> None:
    gate = admission(per_model=1, waiting=1)
    await gate.enter("a")
    (waiting,) = await started(gate.enter("a"))
    with pytest.raises(QueueFull) as caught:
        await gate.enter("a")
    assert caught.value.depth == 2
    gate.leave("a")
    await waiting


async def test_waiting_ends_at_its_limit() -> None:
    gate = admission(per_model=1, wait_s=0.05)
    await gate.enter("a")
    with pytest.raises(QueueFull):
        await gate.enter("a")
    gate.leave("a")
    await gate.enter("a")


async def test_waiting_ends_with_the_callers_time() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    with pytest.raises(DeadlineExceeded):
        await gate.enter("a", timeout_s=0.0)


async def test_who_goes_away_while_it_waits_leaves_no_place_taken() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    gone, waiting = await started(gate.enter("a"), gate.enter("a"))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.leave("a")
    await waiting


async def test_who_goes_away_just_as_it_is_admitted_gives_its_place_back() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    gone, waiting = await started(gate.enter("a"), gate.enter("a"))
    gate.leave("a")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await asyncio.wait_for(waiting, 1.0)


async def test_who_is_cancelled_just_before_a_place_is_free_does_not_break_it() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    gone, waiting = await started(gate.enter("a"), gate.enter("a"))
    gone.cancel()
    gate.leave("a")
    await asyncio.wait_for(waiting, 1.0)
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_closed_gate_refuses_who_comes_and_who_waits() -> None:
    gate = admission(per_model=1)
    await gate.enter("a")
    (waiting,) = await started(gate.enter("a"))
    gate.close()
    with pytest.raises(ServerDraining):
        await waiting
    with pytest.raises(ServerDraining):
        await gate.enter("b")


async def test_the_bytes_that_are_kept_are_bounded() -> None:
    gate = Admission(AdmissionLimits(10, 10, 10, 5.0, max_held_bytes=100))
    gate.hold(60)
    gate.hold(40)
    with pytest.raises(QueueFull) as caught:
        gate.hold(1)
    assert (caught.value.scope, caught.value.depth) == ("request bytes", 2)
    gate.drop(40)
    gate.hold(40)


def known(name: str, share: float | None = None) -> Principal:
    return Principal(name, name, frozenset(), limits=CallerLimits(queue_share=share))


def shared(waiting: int = 4, held_bytes: int = 1000) -> Admission:
    return Admission(AdmissionLimits(10, 1, waiting, 5.0, held_bytes, queue_share=0.5))


async def test_one_caller_takes_no_more_than_its_share_of_the_places_to_wait_in() -> None:
    gate = shared()
    await gate.enter("a")
    greedy = await started(gate.enter("a", who=known("greedy")), gate.enter("a", who=known("greedy")))
    with pytest.raises(QueueFull) as caught:
        await gate.enter("a", who=known("greedy"))
    assert (caught.value.scope, caught.value.depth) == ("one caller", 2)
    others = await started(gate.enter("a", who=known("other")))
    await gate.enter("b", who=known("greedy"))  # a place that is free is no place to wait in
    for task in (*greedy, *others):
        gate.leave("a")
        await task


async def test_a_caller_may_have_a_share_of_its_own_and_one_place_at_least() -> None:
    gate = shared()
    await gate.enter("a")
    (first,) = await started(gate.enter("a", who=known("small", 0.01)))
    with pytest.raises(QueueFull):
        await gate.enter("a", who=known("small", 0.01))
    whole = await started(*(gate.enter("a", who=known("whole", 1.0)) for _ in range(3)))
    for task in (first, *whole):
        gate.leave("a")
        await task


async def test_who_is_not_known_by_name_may_take_every_place() -> None:
    gate = shared()
    await gate.enter("a")
    waiting = await started(*(gate.enter("a") for _ in range(4)))
    for task in waiting:
        gate.leave("a")
        await task


def test_one_caller_keeps_no_more_than_its_share_of_the_bytes() -> None:
    gate = shared()
    gate.hold(400, known("greedy"))
    with pytest.raises(QueueFull) as caught:
        gate.hold(101, known("greedy"))
    assert caught.value.scope == "request bytes of one caller"
    gate.hold(500, known("other"))
    with pytest.raises(QueueFull) as caught:
        gate.hold(101)
    assert caught.value.scope == "request bytes"
    gate.drop(400, known("greedy"))
    gate.hold(500, known("greedy"))


async def test_a_model_with_limits_of_its_own_keeps_to_those() -> None:
    own = {"a": OwnLimits(max_requests=1, max_waiting=1), "b": OwnLimits(max_requests=3)}
    gate = Admission(AdmissionLimits(10, 2, 10, 5.0), lambda model: own.get(model, OwnLimits()))
    for _ in range(3):
        await gate.enter("b")
    await gate.enter("a")
    (waiting,) = await started(gate.enter("a"))
    with pytest.raises(QueueFull) as caught:
        await gate.enter("a")
    assert (caught.value.scope, caught.value.depth) == ("a", 2)
    for _ in range(2):
        await gate.enter("c")
    gate.leave("a")
    await waiting


async def test_other_limits_let_in_who_waits_and_throw_nobody_out() -> None:
    gate = admission(per_model=1, waiting=1)
    await gate.enter("a")
    (waiting,) = await started(gate.enter("a"))
    gate.change(AdmissionLimits(10, 2, 0, 5.0))
    await waiting
    gate.change(AdmissionLimits(10, 1, 0, 5.0))
    with pytest.raises(QueueFull):
        await gate.enter("a")
    gate.leave("a")
    gate.leave("a")
    await gate.enter("a")
