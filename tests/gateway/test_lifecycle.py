import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pomona.v1 import model_pb2

from gateway.back_off import BackOff, BackOffLimits
from gateway.errors import CheckpointRejected, ModelExceedsMemory, ModelFailed
from gateway.lifecycle import (
    FOLLOWS,
    AwaitIdle,
    Claim,
    Effect,
    Event,
    Exited,
    Forsaken,
    Granted,
    Idle,
    Leaving,
    Lifecycle,
    Pause,
    PauseOver,
    Progressed,
    Ready,
    Recovered,
    Refused,
    Retired,
    StartWorker,
    StopWorker,
    Suspected,
    Unwanted,
    Wanted,
)
from gateway.model_status import Exit, ExitCause, Keeping, LoadOptions, LoadProgress, ModelState

S = ModelState
READY = Ready(model_pb2.Model(model="m"))
CRASH = Exited(Exit(ExitCause.DIED, signal=11, last_words=("Segmentation fault",)))
REJECTED = Exited(Exit(ExitCause.DIED, code=3), CheckpointRejected("m", "it is one."))
ORDER = Wanted(is_order=True)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Life(Lifecycle):
    """A life with its clock and the states it went through."""

    def __init__(self, configured: LoadOptions | None = None) -> None:
        self.clock = Clock()
        self.states: list[ModelState] = []
        back_off = BackOff(BackOffLimits(jitter=0.0), random.Random(1))
        told = configured or LoadOptions()
        super().__init__("m", back_off, self.clock, lambda life, _: self.states.append(life.state), lambda: told)

    def apply(self, event: Event) -> Effect | None:
        """Follow an event; memory is there at once."""
        effect = super().apply(event)
        return super().apply(Granted()) if effect == Claim() else effect

    def follow(self, *events: Event) -> Effect | None:
        effect = None
        for event in events:
            effect = self.apply(event)
        return effect


def life(*events: Event) -> Life:
    one = Life()
    one.follow(*events)
    return one


def test_a_wanted_model_is_loaded_and_then_active() -> None:
    one = life()
    assert one.apply(Wanted()) == StartWorker()
    assert one.state is S.LOADING
    assert one.apply(READY) is None
    assert (one.state, one.facts) == (S.ACTIVE, READY.facts)


def test_a_second_wish_joins_the_load() -> None:
    one = life(Wanted())
    assert one.apply(Wanted()) is None
    assert one.apply(ORDER) is None
    assert one.states == [S.QUEUED, S.LOADING]


def test_progress_is_kept_until_the_model_is_ready() -> None:
    one = life(Wanted(), Progressed(LoadProgress("weights", 5, 9)))
    assert one.progress == LoadProgress("weights", 5, 9)
    one.apply(READY)
    assert one.progress is None


def test_a_crash_is_followed_by_a_pause_and_another_start() -> None:
    one = life(Wanted(), READY)
    assert one.apply(CRASH) == Pause(1, 0.5)
    assert (one.state, one.facts, one.retry_at_s) == (S.BACKING_OFF, None, 0.5)
    assert one.apply(PauseOver(1)) == StartWorker()
    assert (one.state, one.restarts, one.last_exit) == (S.LOADING, 1, "SIGSEGV: Segmentation fault")


def test_a_stall_counts_as_a_crash() -> None:
    one = life(Wanted(), READY)
    assert one.apply(Exited(Exit(ExitCause.STALLED, signal=9))) == Pause(1, 0.5)


def test_the_fifth_crash_leaves_the_model_failed_with_its_last_words() -> None:
    one = life(Wanted(), CRASH, PauseOver(1), CRASH, PauseOver(2), CRASH, PauseOver(3), CRASH, PauseOver(4))
    assert one.state is S.LOADING
    assert one.apply(CRASH) is None
    assert one.state is S.FAILED
    assert isinstance(one.failure, ModelFailed)
    assert one.failure.last_exit == "SIGSEGV: Segmentation fault"


def test_a_rejected_checkpoint_fails_at_once_with_the_workers_words() -> None:
    one = life(Wanted(), REJECTED)
    assert (one.state, one.failure) == (S.FAILED, REJECTED.failure)


def test_requests_do_not_start_a_failed_model() -> None:
    one = life(Wanted(), REJECTED)
    assert one.apply(Wanted()) is None
    assert one.state is S.FAILED


def test_an_order_starts_a_failed_model_with_a_new_budget() -> None:
    one = life(Wanted(), CRASH, PauseOver(1), CRASH, PauseOver(2), CRASH, PauseOver(3), CRASH, PauseOver(4), CRASH)
    assert one.apply(ORDER) == StartWorker()
    assert (one.state, one.failure) == (S.LOADING, None)
    assert one.apply(CRASH) == Pause(5, 0.5)


def test_an_order_does_not_shorten_a_pause() -> None:
    one = life(Wanted(), CRASH)
    assert one.apply(ORDER) is None
    assert one.state is S.BACKING_OFF


def test_the_end_of_an_earlier_pause_starts_nothing() -> None:
    one = life(Wanted(), CRASH, Unwanted(0), Wanted(), CRASH)
    assert one.apply(PauseOver(1)) is None
    assert one.apply(PauseOver(2)) == StartWorker()


def test_an_unwanted_model_drains_before_its_worker_is_stopped() -> None:
    one = life(Wanted(), READY)
    assert one.apply(Unwanted(7.0)) == AwaitIdle(7.0)
    assert one.state is S.DRAINING
    assert one.apply(Idle()) == StopWorker()
    assert one.state is S.UNLOADING
    assert one.apply(Exited(Exit(ExitCause.UNLOADED, code=0))) is None
    assert one.state is S.UNLOADED


def test_a_second_unload_may_shorten_the_first() -> None:
    assert life(Wanted(), READY, Unwanted(60.0)).apply(Unwanted(0.0)) == AwaitIdle(0.0)


@pytest.mark.parametrize(("is_forgotten", "rows"), [(True, None), (False, 3)])
def test_what_was_chosen_is_forgotten_with_the_model_unless_told_otherwise(
    is_forgotten: bool, rows: int | None
) -> None:
    one = life(Wanted(LoadOptions(max_batch_rows=3), keeping=Keeping(pinned=True)), REJECTED)
    one.apply(Unwanted(0, is_forgotten))
    assert (one.state, one.options.max_batch_rows) == (S.UNLOADED, rows)
    assert one.keeping == (Keeping() if is_forgotten else Keeping(pinned=True))


def test_an_unwanted_load_is_stopped_at_once() -> None:
    one = life(Wanted())
    assert one.apply(Unwanted(60.0)) == StopWorker()
    assert one.state is S.UNLOADING


def test_readiness_comes_too_late_for_a_worker_on_its_way_out() -> None:
    assert life(Wanted(), Unwanted(0), READY).state is S.UNLOADING


@pytest.mark.parametrize("events", [(Wanted(), READY, Unwanted(9)), (Wanted(), READY, Unwanted(9), Idle())])
def test_a_model_wanted_while_it_goes_is_loaded_again(events: tuple[Event, ...]) -> None:
    one = life(*events)
    assert one.apply(Wanted()) is None
    assert one.apply(Exited(Exit(ExitCause.UNLOADED, code=0))) == StartWorker()
    assert one.state is S.LOADING


def test_a_worker_that_dies_while_it_drains_is_unloaded() -> None:
    assert life(Wanted(), READY, Unwanted(9), CRASH).state is S.UNLOADED


def test_an_unload_ends_a_pause_and_a_failure() -> None:
    assert life(Wanted(), CRASH, Unwanted(9)).state is S.UNLOADED
    failed = life(Wanted(), REJECTED, Unwanted(9))
    assert (failed.state, failed.failure) == (S.UNLOADED, None)


def test_an_unload_of_an_unloaded_model_does_nothing() -> None:
    one = life()
    assert one.apply(Unwanted(9)) is None
    assert one.states == []


def test_a_suspect_worker_is_degraded_until_it_reports() -> None:
    one = life(Wanted(), READY, Suspected())
    assert one.state is S.DEGRADED
    one.apply(Recovered())
    assert one.state is S.ACTIVE


def test_a_worker_that_leaves_unasked_finishes_its_requests_and_is_followed_by_another() -> None:
    for one in (life(Wanted(), READY), life(Wanted(), READY, Suspected())):
        assert one.apply(Leaving()) == AwaitIdle(30.0)
        assert one.state is S.DRAINING
        assert one.apply(Leaving()) is None
        assert one.apply(Exited(Exit(ExitCause.DIED, code=0))) == StartWorker()


def test_a_load_whose_worker_leaves_unasked_is_a_crash() -> None:
    one = life(Wanted())
    assert one.apply(Leaving()) is None
    assert one.apply(Exited(Exit(ExitCause.DIED, code=0))) == Pause(1, 0.5)


def test_other_options_load_the_model_anew() -> None:
    one = life(Wanted(LoadOptions(context_tokens=512)), READY)
    assert one.apply(Wanted(LoadOptions(context_tokens=1024), is_order=True)) == AwaitIdle(30.0)
    one.follow(Idle(), Exited(Exit(ExitCause.UNLOADED, code=0)))
    assert (one.state, one.options) == (S.LOADING, LoadOptions(context_tokens=1024))


def test_the_same_or_no_options_leave_the_model_as_it_is() -> None:
    one = life(Wanted(LoadOptions(context_tokens=512)), READY)
    assert one.apply(Wanted(LoadOptions(context_tokens=512))) is None
    assert one.apply(Wanted(LoadOptions())) is None
    assert one.apply(Wanted()) is None
    assert one.options == LoadOptions(context_tokens=512)


class Waiting(Life):
    """A life whose memory is not there at once."""

    def apply(self, event: Event) -> Effect | None:
        return Lifecycle.apply(self, event)


def waiting(*events: Event) -> Waiting:
    one = Waiting()
    one.follow(*events)
    return one


def test_a_wanted_model_waits_for_memory_before_it_is_loaded() -> None:
    one = waiting()
    assert one.apply(Wanted()) == Claim()
    assert one.apply(Wanted()) is None
    assert one.apply(Granted()) == StartWorker()
    assert one.states == [S.QUEUED, S.LOADING]


def test_other_options_are_another_claim_on_memory() -> None:
    one = waiting(Wanted())
    assert one.apply(Wanted(LoadOptions(context_tokens=64), is_order=True)) == Claim()
    assert one.states == [S.QUEUED]


def test_a_load_that_waits_may_be_unwanted_forsaken_or_refused() -> None:
    assert waiting(Wanted(), Unwanted(9)).state is S.UNLOADED
    assert waiting(Wanted(), Forsaken()).state is S.UNLOADED
    failure = ModelExceedsMemory("m", "it is too large.")
    one = waiting(Wanted(), Refused(failure))
    assert (one.state, one.failure) == (S.FAILED, failure)
    assert one.apply(Wanted()) is None
    assert one.apply(ORDER) == Claim()


def test_memory_that_comes_too_late_starts_nothing() -> None:
    for end in (Unwanted(9), Forsaken()):
        one = waiting(Wanted(), end)
        assert one.apply(Granted()) is None
        assert one.state is S.UNLOADED


def test_a_restart_after_a_crash_waits_for_memory_too() -> None:
    one = waiting(Wanted(), Granted(), READY, CRASH)
    assert one.apply(PauseOver(1)) == Claim()
    assert one.apply(Forsaken()) is None
    assert one.state is S.UNLOADED


def test_a_model_that_goes_for_others_is_not_forgotten() -> None:
    keeping = Keeping(pinned=False, idle_ttl_s=3.0)
    one = life(Wanted(LoadOptions(context_tokens=64), keeping=keeping), READY)
    assert one.apply(Retired(5.0)) == AwaitIdle(5.0)
    one.follow(Idle(), Exited(Exit(ExitCause.UNLOADED, code=0)))
    assert (one.state, one.options, one.keeping) == (S.UNLOADED, LoadOptions(context_tokens=64), keeping)
    one.follow(Unwanted(0))
    assert one.keeping == Keeping()


def test_a_load_may_have_to_go_and_what_does_not_run_has_not() -> None:
    assert life(Wanted()).apply(Retired(5.0)) == StopWorker()
    for one in (life(), life(Wanted(), CRASH), life(Wanted(), REJECTED), waiting(Wanted())):
        before = one.state
        assert one.apply(Retired(5.0)) is None
        assert one.state is before


def test_a_later_load_changes_of_a_models_stay_what_it_names() -> None:
    one = life(Wanted(keeping=Keeping(pinned=True)), READY, Wanted(keeping=Keeping(idle_ttl_s=9.0)), Wanted())
    assert one.keeping == Keeping(True, 9.0)


CONFIGURED = LoadOptions(context_tokens=512, max_batch_rows=16, kv_scheme="none")


def running(**options: object) -> Ready:
    """Return the readiness of a worker that says which options it runs with."""
    return Ready(model_pb2.Model(runtime=model_pb2.ModelRuntime(options=model_pb2.LoadOptions(**options))))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("state", [(), (READY,)])
def test_what_is_configured_may_be_chosen_explicitly_without_a_reload(state: tuple[Event, ...]) -> None:
    one = Life(CONFIGURED)
    one.follow(Wanted(), *state)
    assert one.apply(Wanted(CONFIGURED, is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(kv_scheme="none"), is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(kv_scheme="8"), is_order=True)) is not None
    assert one.options == LoadOptions(kv_scheme="8")


def test_what_is_configured_is_other_than_what_was_chosen_instead() -> None:
    one = Life(CONFIGURED)
    one.follow(Wanted(LoadOptions(max_batch_rows=2)), READY)
    assert one.apply(Wanted(LoadOptions(max_batch_rows=16), is_order=True)) == AwaitIdle(30.0)
    assert one.options == LoadOptions(max_batch_rows=16)


def test_experts_that_lie_where_they_are_wanted_stay() -> None:
    slabs = running(experts_mode=model_pb2.EXPERTS_MODE_SLAB, expert_budget_bytes=1 << 30)
    one = life(Wanted(), slabs)
    assert one.apply(Wanted(LoadOptions(experts="slab", expert_budget=1 << 30), is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(experts="slab", expert_budget=1 << 20), is_order=True)) == AwaitIdle(30.0)
    two = life(Wanted(), slabs)
    assert two.apply(Wanted(LoadOptions(experts="mapped"), is_order=True)) == AwaitIdle(30.0)


def test_a_mode_that_the_worker_came_to_by_itself_is_kept_without_a_reload() -> None:
    one = life(Wanted(), running(experts_mode=model_pb2.EXPERTS_MODE_RESIDENT))
    assert one.apply(Wanted(LoadOptions(experts="auto"), is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(experts="resident"), is_order=True)) is None
    assert one.options == LoadOptions(experts="resident")


def test_a_budget_goes_with_the_mode_that_it_was_for() -> None:
    one = life(Wanted(LoadOptions(experts="slab", expert_budget=500)), READY)
    assert one.apply(Wanted(LoadOptions(experts="mapped"), is_order=True)) == AwaitIdle(30.0)
    one.follow(Idle(), Exited(Exit(ExitCause.UNLOADED, code=0)), READY)
    assert one.apply(Wanted(LoadOptions(experts="slab"), is_order=True)) == AwaitIdle(30.0)
    assert one.options == LoadOptions(experts="slab")


def test_options_that_the_worker_came_to_by_itself_are_the_same() -> None:
    one = life(Wanted(LoadOptions(max_batch_rows=16)), running(context_tokens=2048, max_batch_rows=8))
    assert one.apply(Wanted(LoadOptions(context_tokens=2048, max_batch_rows=8), is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(max_batch_rows=16), is_order=True)) is None
    assert one.apply(Wanted(LoadOptions(max_batch_rows=4), is_order=True)) == AwaitIdle(30.0)


def test_options_of_a_worker_on_its_way_out_no_longer_count() -> None:
    one = life(Wanted(), running(context_tokens=512), Wanted(LoadOptions(context_tokens=1024)))
    one.apply(Wanted(LoadOptions(context_tokens=512), is_order=True))
    one.follow(Idle(), Exited(Exit(ExitCause.UNLOADED, code=0)))
    assert (one.state, one.options) == (S.LOADING, LoadOptions(context_tokens=512))


def test_options_outlive_a_crash_but_not_an_unload() -> None:
    one = life(Wanted(LoadOptions(max_batch_rows=2)), READY, CRASH, PauseOver(1))
    assert one.options == LoadOptions(max_batch_rows=2)
    one.follow(Unwanted(0))
    assert one.options == LoadOptions()


def test_a_long_good_run_lets_the_pauses_begin_anew() -> None:
    one = life(Wanted(), CRASH, PauseOver(1), CRASH, PauseOver(2), READY)
    one.clock.now_s = 100.0
    assert one.apply(CRASH) == Pause(3, 0.5)


EVENTS: Iterable[Event] = (
    Wanted(),
    ORDER,
    Wanted(LoadOptions(context_tokens=64)),
    Unwanted(1.0),
    Progressed(LoadProgress("weights")),
    Suspected(),
    Recovered(),
    Leaving(),
    Idle(),
    PauseOver(1),
    PauseOver(2),
    Retired(1.0),
    Granted(),
    Refused(ModelExceedsMemory("m", "it is too large.")),
    Forsaken(),
)


@given(st.lists(st.sampled_from(list(EVENTS))), st.data())
def test_whatever_happens_each_state_may_follow_the_one_before(before: list[Event], data: st.DataObject) -> None:
    one = data.draw(st.sampled_from([Life, Waiting]))()
    for event in before:
        one.apply(event)
        has_worker = one.state in {S.LOADING, S.ACTIVE, S.DEGRADED, S.DRAINING, S.UNLOADING}
        if has_worker and data.draw(st.booleans()):
            one.apply(data.draw(st.sampled_from([READY, CRASH, REJECTED])))
    for old, new in zip([S.UNLOADED, *one.states], one.states, strict=False):
        assert new in FOLLOWS[old]
