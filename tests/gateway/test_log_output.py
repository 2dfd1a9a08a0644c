"""Log lines that cannot be written: they never hold up, or fail, whoever logs."""

import json
import logging
import os
import threading
from collections.abc import Iterator

import grpc.aio
import pytest

from gateway import log_output
from gateway.log_output import LogOutput, library_lines
from gateway.logs import LogRing, make_log
from tests.support.waiting import wait_until

LIMIT_S = 5.0
LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_all(descriptor: int, until: bytes) -> bytes:
    got = b""
    while until not in got:
        got += os.read(descriptor, 65536)
    return got


def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1], "json")
    for number in range(3):
        output.write(f"line {number}\n")
    output.close(LIMIT_S)
    assert os.read(pipe[0], 100) == b"line 0\nline 1\nline 2\n"


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_pipe_that_no_one_reads_holds_no_one_up_and_what_was_lost_is_told_later(
    pipe: tuple[int, int], style: log_output.Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "MAX_WAITING_BYTES", 16 * 1024)
    output = LogOutput(pipe[1], style)
    done = threading.Event()

    def flood() -> None:
        for _ in range(1000):
            output.write(LINE)
        done.set()

    threading.Thread(target=flood, daemon=True).start()
    assert done.wait(LIMIT_S)
    got = os.read(pipe[0], 65536)
    while output._lines:
        got += os.read(pipe[0], 65536)
    output.write("last\n")
    got += read_all(pipe[0], b"last\n")
    output.close(LIMIT_S)
    written = got.count(LINE.encode())
    notices = [line for line in got.decode().splitlines() if "dropped" in line]
    told = [json.loads(notice)["lines"] if style == "json" else int(notice.split()[0]) for notice in notices]
    assert min(told) > 0
    assert written + sum(told) == 1000
    assert got.endswith(b"last\n")


def test_a_pipe_that_no_one_reads_holds_up_the_end_no_longer_than_the_limit(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1], "json")
    for _ in range(200):
        output.write(LINE)
    ended = threading.Thread(target=output.close, args=(0.05,), daemon=True)
    ended.start()
    ended.join(LIMIT_S)
    assert not ended.is_alive()
    os.set_blocking(pipe[0], False)
    while output._thread is not None and output._thread.is_alive():
        try:
            os.read(pipe[0], 65536)
        except BlockingIOError:
            output._thread.join(0.01)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("closed")])
def test_what_cannot_be_written_is_counted_and_the_next_lines_are_tried_again(error: Exception) -> None:
    written: list[bytes] = []
    tried = threading.Event()

    def write(_descriptor: int, data: bytes) -> int:
        if not tried.is_set():
            tried.set()
            raise error
        written.append(data)
        return len(data)

    output = LogOutput(0, "console", write=write)
    output.write("lost\n")
    assert tried.wait(LIMIT_S)
    wait_until(lambda: output._dropped == 1, LIMIT_S)
    output.write("kept\n")
    output.close(LIMIT_S)
    assert [line.split(b" ")[0] for line in written] == [b"1", b"kept\n"]


def test_a_line_is_written_to_its_end_where_the_descriptor_takes_a_part_at_a_time(pipe: tuple[int, int]) -> None:
    calls = 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BlockingIOError
        return os.write(descriptor, data[:4])

    output = LogOutput(pipe[1], "json", write=write)
    output.write("a long line\n")
    output.close(LIMIT_S)
    assert os.read(pipe[0], 100) == b"a long line\n"


def test_a_process_without_standard_error_writes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert log_output.standard_error() is None
    output = LogOutput(None, "json")
    output.write("x\n")
    output.close(LIMIT_S)
    assert not output.isatty()


def test_a_library_line_is_written_but_its_text_is_not_kept(pipe: tuple[int, int]) -> None:
    output, ring = LogOutput(pipe[1], "json"), LogRing(10)
    log = make_log(ring, "info", "json", output)
    with library_lines(log):
        logging.getLogger("asyncio").error("lost: %s", "/secret/place")
    logging.getLogger("asyncio").debug("not this")
    output.close(LIMIT_S)
    assert json.loads(os.read(pipe[0], 4096))["detail"] == "lost: /secret/place"
    assert dict(ring.past(1)[0].fields) == {"library": "asyncio"}


def test_a_library_that_could_not_send_to_a_client_that_left_is_no_error(pipe: tuple[int, int]) -> None:
    output, ring = LogOutput(pipe[1], "json"), LogRing(10)
    with library_lines(make_log(ring, "info", "json", output)):
        for error in (grpc.aio.InternalError("the client left"), ValueError("a bug")):
            logging.getLogger("grpc").error("%s in a method", type(error).__name__, exc_info=error)
    output.close(LIMIT_S)
    assert json.loads(os.read(pipe[0], 4096))["detail"] == "ValueError in a method"
    assert len(ring.past(10)) == 1
