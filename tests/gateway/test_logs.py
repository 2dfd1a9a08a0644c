"""Log lines: how they look, what is kept, and who follows them."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from gateway import logs
from gateway.log_levels import LogLevels
from gateway.log_output import Style
from gateway.logs import LogLine, LogRing, make_log


def line(number: int, model: str = "") -> LogLine:
    return LogLine(time_s=float(number), level="info", event=f"line {number}", model=model)


def test_a_json_line_is_for_programs() -> None:
    stream = io.StringIO()
    make_log(LogRing(10), "info", "json", stream).info("request ended", request_id="r", status="OK")
    written = json.loads(stream.getvalue())
    assert (written["event"], written["level"], written["request_id"]) == ("request ended", "info", "r")


def test_a_console_line_is_for_people() -> None:
    stream = io.StringIO()
    make_log(LogRing(10), "info", "console", stream).warning("worker stalled", model="m")
    assert "worker stalled" in stream.getvalue()
    assert "model=m" in stream.getvalue()


def test_lines_below_the_level_are_not_written_or_kept() -> None:
    stream, ring = io.StringIO(), LogRing(10)
    make_log(ring, "warning", "json", stream).info("nothing")
    assert (stream.getvalue(), ring.past(10)) == ("", [])


def test_the_ring_keeps_model_instance_and_fields_apart() -> None:
    ring = LogRing(10)
    make_log(ring, "info", "json", io.StringIO()).bind(model="m").info("begun", instance_id="i", tokens=3)
    kept = ring.past(1)[0]
    assert (kept.event, kept.model, kept.instance_id, dict(kept.fields)) == ("begun", "m", "i", {"tokens": "3"})


def test_a_trace_is_written_but_only_its_name_is_kept() -> None:
    stream, ring = io.StringIO(), LogRing(10)
    try:
        Path("/secret/place").stat()
    except OSError as error:
        make_log(ring, "info", "json", stream).error("failed", exc_info=error)
    assert "/secret/place" in stream.getvalue()
    assert ring.past(1)[0].fields["exception"] == "FileNotFoundError"
    assert "/secret/place" not in str(ring.past(1)[0])


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_trace_shows_no_values(style: Style) -> None:
    stream, prompt = io.StringIO(), "a private prompt"
    try:
        prompt.index("none")
    except ValueError as error:
        make_log(LogRing(10), "info", style, stream).error("failed", exc_info=error)
    assert "ValueError: substring not found" in stream.getvalue()
    assert prompt not in stream.getvalue()


def test_the_ring_keeps_the_last_lines() -> None:
    ring = LogRing(3)
    for number in range(5):
        ring.add(line(number))
    assert [one.event for one in ring.past(10)] == ["line 2", "line 3", "line 4"]
    assert [one.event for one in ring.past(1)] == ["line 4"]
    assert ring.past(0) == []


def test_past_lines_of_one_model_are_found_among_others() -> None:
    ring = LogRing(10)
    for number in range(6):
        ring.add(line(number, "a" if number % 2 else "b"))
    assert [one.event for one in ring.past(2, "a")] == ["line 3", "line 5"]


async def test_a_follower_gets_the_lines_of_its_model() -> None:
    ring = LogRing(10)
    follower = ring.follow("a")
    ring.add(line(0, "b"))
    ring.add(line(1, "a"))
    got, dropped = await asyncio.wait_for(anext(aiter(follower.lines())), 1.0)
    assert (got.event, dropped) == ("line 1", 0)


async def test_a_slow_follower_loses_the_oldest_lines_and_is_told_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_LINES", 3)
    ring = LogRing(10)
    follower = ring.follow()
    for number in range(5):
        ring.add(line(number))
    lines = aiter(follower.lines())
    assert [((await anext(lines))[0].event) for _ in range(3)] == ["line 2", "line 3", "line 4"]
    ring.add(line(5))
    assert (await anext(lines))[1] == 0


async def test_the_number_of_lost_lines_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_LINES", 2)
    ring = LogRing(10)
    follower = ring.follow()
    for number in range(5):
        ring.add(line(number))
    lines = aiter(follower.lines())
    assert [(await anext(lines))[1] for _ in range(2)] == [3, 0]


def test_a_closed_follower_is_forgotten() -> None:
    ring = LogRing(10)
    follower = ring.follow()
    follower.close()
    follower.close()
    ring.add(line(1))
    assert ring._followers == set()


def test_the_level_changes_while_the_log_is_used() -> None:
    stream, levels = io.StringIO(), LogLevels("warning")
    log = make_log(LogRing(10), levels, "json", stream)
    log.info("before")
    levels.set_all("info")
    log.info("after")
    log.debug("whispered")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["after"]


def test_lines_of_one_worker_have_a_level_of_their_own() -> None:
    stream, levels = io.StringIO(), LogLevels("info")
    log = make_log(LogRing(10), levels, "json", stream)
    levels.set_worker("m", "debug")
    for model, instance_id in (("m", "i1"), ("n", "i2")):
        log.debug("detail", model=model, instance_id=instance_id)
    levels.set_gateway("error")
    log.warning("of the gateway", model="m")
    log.info("of a worker", model="n", instance_id="i2")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["model"]) for line in told] == [("detail", "m"), ("of a worker", "n")]
    assert (levels.gateway, levels.of_worker("m"), levels.of_worker("new")) == ("error", "debug", "info")
