"""A worker's log lines are JSON objects that its gateway can read."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from worker import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_its_level_event_and_fields(stream: io.StringIO) -> None:
    logging.getLogger("worker.test").info("went %s", "well", extra={"tokens": 3, "where": object})
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["logger"], line["tokens"]) == ("info", "went well", "worker.test", 3)
    assert isinstance(line["where"], str)


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    logging.getLogger("worker.test").debug("whispered")
    assert lines(stream) == []


def test_an_exception_comes_with_its_trace(stream: io.StringIO) -> None:
    try:
        int("wrong\nlines")
    except ValueError:
        logging.getLogger("worker.test").exception("failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "ValueError: invalid literal" in line["trace"]
