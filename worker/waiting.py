"""The line of sequences that wait for a cache slot; plain Python.

Higher priority first, and within a priority first come, first served. So that nobody waits for ever, the one that came
first of all is passed over at most `MAX_OVERTAKES` times in a row: then it is next, whatever its priority. A sequence
with k others that came before it is therefore overtaken at most (k + 1) * MAX_OVERTAKES times, and of the starts at
least MAX_OVERTAKES in MAX_OVERTAKES + 1 go by priority, however long the line of low ones is.

A follower keeps its place but is left out of account, and holds nobody up, until its leader's prompt is computed or the
leader has ended.
"""

from bisect import insort
from dataclasses import dataclass

from worker.sequence import Sequence, State

MAX_OVERTAKES = 16


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    sequence: Sequence

    @property
    def rank(self) -> tuple[int, int]:
        return -self.sequence.request.priority, self.number


class WaitingLine:
    """Keeps sequences in order until they get a slot."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []  # by rank
        self._num_added = 0
        self._num_overtakes = 0  # starts in a row that passed over the one that came first

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence behind those of its priority."""
        self._num_added += 1
        insort(self._entries, _Entry(self._num_added, sequence), key=lambda entry: entry.rank)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out that does not want a slot any more."""
        self._entries = [entry for entry in self._entries if entry.sequence is not sequence]

    def places(self) -> dict[Sequence, int]:
        """Return for each sequence how many are in front of it, by priority."""
        return {entry.sequence: place for place, entry in enumerate(self._entries)}

    def next(self) -> Sequence | None:
        """Return who gets the next slot; None where nobody could use it."""
        ready = [entry for entry in self._entries if _is_ready(entry.sequence)]
        if not ready:
            return None
        return (_oldest(ready) if self._num_overtakes >= MAX_OVERTAKES else ready[0]).sequence

    def start(self, sequence: Sequence) -> None:
        """Take a sequence out that got a slot."""
        ready = [entry for entry in self._entries if _is_ready(entry.sequence)]
        is_overtaking = bool(ready) and _oldest(ready).sequence is not sequence
        self._num_overtakes = self._num_overtakes + 1 if is_overtaking else 0
        self.remove(sequence)


def _oldest(entries: list[_Entry]) -> _Entry:
    return min(entries, key=lambda entry: entry.number)


def _is_ready(sequence: Sequence) -> bool:
    leader = sequence.leader
    return leader is None or leader.state is State.ENDED or leader.prefilled == len(leader.request.prompt_ids)
