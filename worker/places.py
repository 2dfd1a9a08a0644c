"""Which requests that wait are to be told their place now; plain Python."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker.sequence import Sequence

INTERVAL_S = 0.5


@dataclass(slots=True)
class _Watched:
    sequence: Sequence
    place: int | None = None
    told_at: float | None = None


class PlaceWatch:
    """Follows the places of requests while they wait; each is told at once, and then every half second at most.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    def add(self, sequence: Sequence) -> None:
        """Watch the first sequence of a request."""
        self._watched[sequence.key] = _Watched(sequence)

    def remove(self, key: str) -> None:
        """Watch a request no longer: it has started or ended, or was never watched."""
        self._watched.pop(key, None)

    def changed(self, places_of: Callable[[], Mapping[Sequence, int]]) -> list[tuple[str, int]]:
        """Return the key and the place of each request that is to be told now.

        Args:
            places_of: says for each sequence that waits how many are before it; asked where somebody is watched.
        """
        if not self._watched:
            return []
        now, places = self._clock(), places_of()
        found: list[tuple[str, int]] = []
        for key, watched in self._watched.items():
            place = places.get(watched.sequence, watched.place)
            is_due = watched.told_at is None or now - watched.told_at >= INTERVAL_S
            if is_due and place is not None and place != watched.place:
                watched.place, watched.told_at = place, now
                found.append((key, place))
        return found
