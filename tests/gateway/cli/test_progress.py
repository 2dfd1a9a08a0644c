"""How far a load is, in words, lines and numbers."""

import pytest
from pomona.v1 import model_pb2 as m

from gateway.cli.progress import LINE_INTERVAL_S, Lines, Meter

MB = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def loading(phase: str, done: int = 0, total: int = 100 * MB) -> m.Model:
    progress = m.LoadProgress(phase=phase, bytes_done=done, bytes_total=total)
    return m.Model(model="smol", state=m.MODEL_STATE_LOADING, load_progress=progress)


def test_rate_is_that_of_the_phase() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.read(loading("reading", 10 * MB))
    clock.now_s += 2
    reading = meter.read(loading("reading", 50 * MB))
    assert reading is not None
    assert (reading.bytes_per_second, reading.line()) == (
        20 * MB,
        "reading weights, 50.0 MB of 100.0 MB, 20.0 MB/s",
    )
    warm = meter.read(loading("warm-up", 100 * MB))
    assert warm is not None
    assert warm.bytes_per_second is None


@pytest.mark.parametrize("state", [m.MODEL_STATE_UNLOADED, m.MODEL_STATE_ACTIVE, m.MODEL_STATE_FAILED])
def test_model_at_rest_has_no_progress(state: m.ModelState.ValueType) -> None:
    assert Meter().read(m.Model(state=state)) is None


def test_phase_of_a_newer_server_is_told_as_it_is() -> None:
    reading = Meter().read(loading("compiling", total=0))
    assert reading is not None
    assert (reading.phase, reading.line()) == ("compiling", "compiling")


def test_model_that_waits_says_for_what() -> None:
    reading = Meter().read(m.Model(state=m.MODEL_STATE_QUEUED, waiting_for="memory"))
    assert reading is not None
    assert (reading.state, reading.line()) == ("queued", "memory")


def test_lines_come_with_each_phase_and_now_and_then_within_one(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines("smol", Meter(clock))
    for done in range(1, 10):
        lines.update(loading("reading", done * MB))
        clock.now_s += LINE_INTERVAL_S / 4
    lines.update(loading("warm-up", total=0))
    lines.update(loading("warm-up", total=0))
    lines.close()
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "smol: reading weights, 1.0 MB of 100.0 MB"
    assert printed[1] == "smol: reading weights, 5.0 MB of 100.0 MB, 2.0 MB/s"
    assert (len(printed), printed[-1]) == (4, "smol: warming up")
