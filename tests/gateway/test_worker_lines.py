from typing import Any

import structlog

from gateway.worker_lines import line_logger


def logged(*lines: str) -> list[Any]:
    capture = structlog.testing.LogCapture()
    wrapper = structlog.make_filtering_bound_logger("info")
    take = line_logger(structlog.wrap_logger(None, wrapper_class=wrapper, processors=[capture]).bind(model="m"))
    for line in lines:
        take("stderr", line)
    return capture.entries


def test_a_workers_line_keeps_its_level_and_fields() -> None:
    line = '{"time": 1.5, "level": "warning", "logger": "worker.engine", "event": "slow step", "seconds": 3}'
    assert logged(line) == [
        {"log_level": "warning", "event": "slow step", "model": "m", "logger": "worker.engine", "seconds": 3}
    ]


def test_a_line_below_the_level_is_not_logged() -> None:
    assert logged('{"level": "debug", "event": "tick"}') == []


def test_a_worker_cannot_speak_for_another_model() -> None:
    (line,) = logged('{"level": "error", "event": "gone", "model": "other", "exc_info": true}')
    assert (line["model"], "exc_info" in line) == ("m", False)


def test_what_is_no_log_line_is_logged_as_it_is() -> None:
    lines = (
        "Traceback (most recent call last):",
        "{not json",
        '{"event": 7}',
        '{"level": "loud", "event": "x"}',
        "[1]",
    )
    assert [entry["line"] for entry in logged(*lines)] == list(lines)
    assert {entry["event"] for entry in logged(*lines)} == {"worker said"}


def test_a_line_brings_no_more_than_its_share_of_fields() -> None:
    fields = ", ".join(f'"field_{number}": {number}' for number in range(100))
    (line,) = logged(f'{{"level": "info", "event": "much", {fields}}}')
    assert len(line) < 20
