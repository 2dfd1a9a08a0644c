"""A thread that does small jobs for one that must not wait, in their order and no more than fit a bound."""

import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_JOBS = 4096


class BackgroundWriter:
    """Runs jobs one after the other on its own thread, which does not keep the process alive.

    Args:
        max_waiting_bytes: what jobs that wait or run may hold together.
    """

    def __init__(self, max_waiting_bytes: int) -> None:
        self._max_waiting_bytes = max_waiting_bytes
        self._jobs: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._is_running = False
        self._is_closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="prefix-writer", daemon=True).start()

    def could_take(self, num_bytes: int) -> bool:
        """Return whether a job that holds so many bytes would be taken now, or once others are done."""
        return not self._is_closed and num_bytes <= self._max_waiting_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Return whether a job that holds so many bytes would be taken."""
        with self._changed:
            return self._fits(num_bytes)

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until half of what may wait is free, or nothing more is taken."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._waiting_bytes <= self._max_waiting_bytes // 2, timeout_s
            )

    def add(self, job: Callable[[], None], num_bytes: int = 0) -> bool:
        """Take a job that holds so many bytes, or return False."""
        with self._changed:
            if not self._fits(num_bytes):
                return False
            self._jobs.append((job, num_bytes))
            self._waiting_bytes += num_bytes
            self._changed.notify_all()
            return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until all jobs are done; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._is_running, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more jobs and end after those that wait; return whether they were done in time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return self.drain(timeout_s)

    def _fits(self, num_bytes: int) -> bool:
        if self._is_closed or len(self._jobs) >= MAX_WAITING_JOBS:
            return False
        return self._waiting_bytes + num_bytes <= self._max_waiting_bytes

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            job, num_bytes = taken
            try:
                job()
            finally:
                del job, taken  # before it counts as done: it holds the bytes
                self._finish(num_bytes)

    def _take(self) -> tuple[Callable[[], None], int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closed)
            if not self._jobs:
                return None
            self._is_running = True
            return self._jobs.popleft()

    def _finish(self, num_bytes: int) -> None:
        with self._changed:
            self._is_running = False
            self._waiting_bytes -= num_bytes
            self._changed.notify_all()
