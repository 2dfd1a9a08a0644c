"""What grammars may cost together that are ready for sequences: each sequence has its own copy, and memory has an end.

The measure is how long the trial of a grammar computed. What it takes of memory follows that: some 20 to 110 MB for a
second, and 330 for a text that is repeated 100,000 times. A schema from the world takes milliseconds, a large one a
quarter of a second, so requests below `FREE_COST_S` are never held up by others.
"""

import threading

from worker.errors import ConstraintBusy

# Of one request, all its sequences together: some 10 MB.
FREE_COST_S = 0.1
# Of all requests above that together: some 1 GB. One alone may always come.
MAX_COST_S = 10.0


class Budget:
    """Counts what is ready; may be called from any thread.

    Args:
        max_cost_s: of requests that are above the free cost, together.
    """

    def __init__(self, max_cost_s: float = MAX_COST_S) -> None:
        self._max_cost_s = max_cost_s
        self._lock = threading.Lock()
        self._costs_s: list[float] = []

    def take(self, cost_s: float) -> None:
        """Count a request's grammars.

        Raises:
            ConstraintBusy: those of others leave no room.
        """
        if cost_s <= FREE_COST_S:
            return
        with self._lock:
            if self._costs_s and sum(self._costs_s) + cost_s > self._max_cost_s:
                raise ConstraintBusy(len(self._costs_s))
            self._costs_s.append(cost_s)

    def give_back(self, cost_s: float) -> None:
        """Count them no more."""
        if cost_s <= FREE_COST_S:
            return
        with self._lock:
            self._costs_s.remove(cost_s)
