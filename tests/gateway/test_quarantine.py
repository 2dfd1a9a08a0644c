"""Which requests are blamed for the death of a worker, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pomona.v1 import generation_pb2

from gateway.envelope import content_of
from gateway.quarantine import LONG_BYTES, Quarantine, QuarantineLimits, Run, Stage, fingerprint_of
from gateway.request_errors import RequestQuarantined
from tests.support.scripted_worker import request

METHOD = "/pomona.v1.GenerationService/Generate"
EVENTS = ("begun", "answered", "completed", "left", "died")
BAD, GOOD, OTHER = b"bad", b"good", b"other"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def quarantine(**limits: float) -> tuple[Quarantine, Clock]:
    clock = Clock()
    return Quarantine(QuarantineLimits(**limits), clock), clock  # pyright: ignore[reportArgumentType]


def die_with(kept: Quarantine, **stages: Stage) -> None:
    """Have a worker die while it has these requests."""
    instance = f"i{id(object())}"
    runs = [(kept.run(instance, name.encode()), stage) for name, stage in stages.items()]
    for run, stage in runs:
        run.stage = stage
    for run, _ in runs:
        run.died()
        run.leave()


def test_a_request_is_refused_after_two_deaths_and_not_after_one() -> None:
    kept, _ = quarantine()
    die_with(kept, bad=Stage.BEGUN)
    kept.check(BAD)
    die_with(kept, bad=Stage.BEGUN)
    with pytest.raises(RequestQuarantined) as caught:
        kept.check(BAD)
    assert caught.value.deaths == 2
    kept.check(GOOD)


def test_a_worker_dies_once_however_many_requests_tell_of_it() -> None:
    kept, _ = quarantine()
    die_with(kept, bad=Stage.BEGUN, good=Stage.BEGUN, other=Stage.BEGUN)
    assert [kept.deaths(one) for one in (BAD, GOOD, OTHER)] == [1, 1, 1]


def test_two_of_the_same_count_once() -> None:
    kept, _ = quarantine()
    first, second = kept.run("i", BAD), kept.run("i", BAD)
    first.died()
    second.died()
    assert kept.deaths(BAD) == 1


def test_what_had_not_begun_is_blamed_only_where_nothing_had() -> None:
    kept, _ = quarantine()
    die_with(kept, bad=Stage.BEGUN, good=Stage.CALLED)
    assert (kept.deaths(BAD), kept.deaths(GOOD)) == (1, 0)
    die_with(kept, other=Stage.CALLED)
    assert kept.deaths(OTHER) == 1


def test_whom_a_worker_died_with_before_is_blamed_before_others() -> None:
    kept, _ = quarantine()
    die_with(kept, bad=Stage.BEGUN)
    die_with(kept, bad=Stage.CALLED, good=Stage.BEGUN, other=Stage.ANSWERED)
    assert [kept.deaths(one) for one in (BAD, GOOD, OTHER)] == [2, 0, 0]


def test_of_those_whose_prompt_is_read_is_blamed_before_who_is_answered() -> None:
    kept, _ = quarantine()
    die_with(kept, bad=Stage.BEGUN, good=Stage.BEGUN)
    die_with(kept, bad=Stage.BEGUN, good=Stage.ANSWERED)
    assert (kept.deaths(BAD), kept.deaths(GOOD)) == (2, 1)


def test_an_answer_to_the_end_clears() -> None:
    kept, _ = quarantine()
    die_with(kept, good=Stage.ANSWERED)
    kept.run("i", GOOD).completed()
    assert (kept.deaths(GOOD), len(kept)) == (0, 0)


def test_a_request_that_left_before_is_not_blamed() -> None:
    kept, _ = quarantine()
    gone = kept.run("i", GOOD)
    gone.leave()
    gone.leave()
    kept.run("i", BAD).died()
    assert (kept.deaths(GOOD), kept.deaths(BAD)) == (0, 1)


def test_blame_ends_with_time() -> None:
    kept, clock = quarantine(lasting_s=10.0)
    die_with(kept, bad=Stage.BEGUN)
    die_with(kept, bad=Stage.BEGUN)
    clock.now_s += 9.9
    with pytest.raises(RequestQuarantined):
        kept.check(BAD)
    clock.now_s += 0.2
    kept.check(BAD)
    die_with(kept, bad=Stage.BEGUN)
    assert kept.deaths(BAD) == 1


def test_no_more_are_remembered_than_the_limit() -> None:
    kept, _ = quarantine(max_requests=2)
    for name in ("bad", "good", "other"):
        die_with(kept, **{name: Stage.BEGUN})
    assert (len(kept), kept.deaths(BAD), kept.deaths(OTHER)) == (2, 0, 1)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=60))
def test_whatever_happens_only_what_ran_on_a_dead_worker_is_blamed_and_nothing_is_left(
    events: list[tuple[str, int]],
) -> None:
    kept, _ = quarantine()
    fingerprints = [b"%d" % (number % 4) for number in range(6)]
    runs = [kept.run(f"i{number % 2}", one) for number, one in enumerate(fingerprints)]
    died: set[str] = set()
    for event, number in events:
        run = runs[number]
        match event:
            case "begun":
                run.stage = Stage.BEGUN
            case "answered":
                run.stage = Stage.ANSWERED
            case "completed":
                run.completed()
            case "left":
                run.leave()
            case _:
                run.died()
                died.add(run.instance_id)
    most = {one: sum(1 for instance in died if instance in _instances(runs, one)) for one in set(fingerprints)}
    assert all(kept.deaths(one) <= most[one] for one in most)
    for run in runs:
        run.leave()
    assert kept.running == 0


def _instances(runs: list[Run], fingerprint: bytes) -> set[str]:
    return {run.instance_id for run in runs if run.fingerprint == fingerprint}


def test_with_no_limit_nothing_is_refused() -> None:
    kept, _ = quarantine(deaths=0)
    for _ in range(5):
        die_with(kept, bad=Stage.BEGUN)
    kept.check(BAD)


async def fingerprint(body: bytes, model: str = "model-a", method: str = METHOD) -> bytes:
    return await fingerprint_of(method, model, body)


async def test_a_request_is_the_same_whatever_its_id_its_priority_and_the_alias() -> None:
    first = await fingerprint(request("model-a", "r-9", "Hello"))
    assert first == await fingerprint(request("alias-a", "r-10", "Hello", priority=7))
    assert first == await fingerprint(request("alias-a", "", "Hello"))


@pytest.mark.parametrize(
    ("body", "model", "method"),
    [
        (request("model-a", "r", "Hullo"), "model-a", METHOD),
        (request("model-a", "r", "Hello"), "model-b", METHOD),
        (request("model-a", "r", "Hello"), "model-a", METHOD + "Tokens"),
    ],
)
async def test_other_content_another_model_or_method_is_another_request(body: bytes, model: str, method: str) -> None:
    assert await fingerprint(request("model-a", "r", "Hello")) != await fingerprint(body, model, method)


async def test_a_caller_of_another_group_does_not_have_a_request_refused() -> None:
    body = request("model-a", "r", "Hello")
    groups = ("", "a", "b")
    assert len({await fingerprint_of(METHOD, "model-a", body, group) for group in groups}) == len(groups)


async def test_a_long_request_has_a_fingerprint_too() -> None:
    one, other = (request("model-a", name, "x" * LONG_BYTES) for name in ("r", "s"))
    assert await fingerprint(one) == await fingerprint(other)
    assert await fingerprint(one) != await fingerprint(request("model-a", "r", "y" * LONG_BYTES))


def test_the_content_is_all_but_the_envelope() -> None:
    spec = generation_pb2.GenerationSpec(prompt="Hello")
    message = generation_pb2.GenerateRequest(model="m", request_id="r", priority=3, spec=spec)
    content = b"".join(content_of(message.SerializeToString()))
    assert generation_pb2.GenerateRequest.FromString(content) == generation_pb2.GenerateRequest(spec=spec)
