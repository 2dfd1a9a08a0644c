"""When a request came into each phase of its life, and how long each took."""

from dataclasses import dataclass

from worker.events import Timing


@dataclass(slots=True)
class PhaseClock:
    """When a request entered each phase, in seconds of the engine's clock; None: not yet."""

    submitted: float = 0.0
    started: float | None = None
    first_token: float | None = None

    def timing(self, now: float) -> Timing:
        """Return the length of the phases until `now`."""
        started = now if self.started is None else self.started
        first_token = now if self.first_token is None else self.first_token
        return Timing(
            queue_us=_microseconds(started - self.submitted),
            prefill_us=_microseconds(first_token - started),
            decode_us=_microseconds(now - first_token),
            time_to_first_token_us=_microseconds(first_token - self.submitted),
            total_us=_microseconds(now - self.submitted),
        )


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
