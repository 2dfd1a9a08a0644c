"""Tests of `models.experts.trace`."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from models.experts.errors import TraceUnwritable
from models.experts.trace import META, ExpertTrace

FULL_DISK = Path("/dev/full")


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_writes_a_record_for_each_choice(tmp_path: Path) -> None:
    trace = ExpertTrace(tmp_path / "trace.jsonl")
    trace.observe(3, mx.array([[[7, 2], [0, 5]]], dtype=mx.uint32))
    trace.observe(4, mx.array([[[1, 6]]], dtype=mx.int32))
    trace.close()
    head, *records = lines(tmp_path / "trace.jsonl")
    assert head["meta"] == META
    assert records == [
        {"c": 0, "l": 3, "s": [1, 2, 2], "i": [7, 2, 0, 5]},
        {"c": 1, "l": 4, "s": [1, 1, 2], "i": [1, 6]},
    ]


def test_every_choice_is_there_while_the_trace_is_still_written(tmp_path: Path) -> None:
    trace = ExpertTrace(tmp_path / "trace.jsonl")
    for count in range(1, 4):
        trace.observe(0, mx.array([[[1]]]))
        assert len(lines(tmp_path / "trace.jsonl")) == 1 + count
    trace.close()


def test_is_written_anew_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for _ in range(2):
        ExpertTrace(file).close()
    assert [list(line) for line in lines(file)] == [["meta", "note"]]
    assert file.stat().st_mode & 0o777 == 0o600


def test_ends_where_it_has_grown_to_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = ExpertTrace(tmp_path / "trace.jsonl", max_bytes=200)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            trace.observe(0, mx.array([[[1, 2, 3]]]))
    trace.close()
    assert (tmp_path / "trace.jsonl").stat().st_size <= 200
    assert len(lines(tmp_path / "trace.jsonl")) > 1
    assert [record.getMessage() for record in caplog.records] == ["the trace of experts ends here: it has 200 bytes"]


@pytest.mark.skipif(not FULL_DISK.exists(), reason="the system has no full disk to offer")
def test_a_full_disk_ends_the_trace_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trace = ExpertTrace(FULL_DISK)
        trace.observe(0, mx.array([[[1]]]))
        trace.close()
    assert "No space left" in caplog.text


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceUnwritable, match="No such file"):
        ExpertTrace(tmp_path / "nowhere" / "trace.jsonl")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceUnwritable, match="it is a pipe"):
        ExpertTrace(tmp_path / "pipe")
