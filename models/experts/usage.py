"""How often each expert was needed, kept on the disk, so that the next start of a model has the hot ones there at once.

A file of lines `layer expert count`, written to a temporary name, fsynced and renamed: a reader sees the old one or the
new one. It is worth nothing but time, so one that cannot be used is left behind with a warning.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from models.checkpoint.errors import CheckpointError
from models.checkpoint.files import read_bytes

# Counts are whole numbers of 32 bits; what would grow beyond stays there.
MAX_COUNT = (1 << 32) - 1
# Once so many selections were counted all counts are halved: what a model was asked for last weighs most.
DECAY_SELECTIONS = 1 << 22
# Fewer selections say nothing. From then on the share of slots that hot experts get grows until there are so many.
LEAST_SELECTIONS = 5_000
SURE_SELECTIONS = 200_000
# Of a layer's own slots, what hot experts get at most.
PINNED_SHARE = 0.5
SAVE_INTERVAL_S = 600.0
# Of pinned experts so many give way at once at most, each to one that was selected a quarter and so many times more.
MAX_SWAPS = 4
LEAST_GAIN = 1024
# Of a file that is read: some 300,000 experts.
MAX_FILE_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class UsageLedger:
    """Counts selections of experts; belongs to one thread.

    Args:
        path: its file; None: it is kept nowhere.
        num_layers: of the model that have experts.
        num_experts: of each.
        clock: monotonic seconds.

    Attributes:
        path: as given.
        num_layers: as given.
        num_experts: as given.
    """

    def __init__(
        self,
        path: Path | None,
        num_layers: int,
        num_experts: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.num_layers = num_layers
        self.num_experts = num_experts
        self._clock = clock
        self._counts = [[0] * num_experts for _ in range(num_layers)]
        self._total = 0
        self._is_changed = False
        self._saved_at = clock()
        if path is not None:
            self._read(path)

    @property
    def total(self) -> int:
        """Selections that are counted now."""
        return self._total

    def count(self, layer: int, expert: int) -> int:
        """Return how often an expert was selected."""
        return self._counts[layer][expert]

    def note(self, layer: int, selections: Mapping[int, int]) -> None:
        """Count selections of a layer: how many tokens were sent to each expert."""
        counts = self._counts[layer]
        for expert, number in selections.items():
            added = min(number, MAX_COUNT - counts[expert])
            counts[expert] += added
            self._total += added
        self._is_changed = True
        if self._total >= DECAY_SELECTIONS:
            self.decay()

    def decay(self) -> None:
        """Halve every count."""
        self._counts = [[count // 2 for count in counts] for counts in self._counts]
        self._total = sum(map(sum, self._counts))
        self._is_changed = True

    def num_pinned(self, layer_slots: int) -> int:
        """Return how many of a layer's own slots hot experts should have: half of them where it is sure, or fewer."""
        if self._total < LEAST_SELECTIONS:
            return 0
        confidence = min(1.0, self._total / SURE_SELECTIONS)
        return int(layer_slots * PINNED_SHARE * confidence)

    def hottest(self, layer: int, number: int) -> list[int]:
        """Return a layer's experts that were selected most, the first of equals first; none that never was."""
        counts = self._counts[layer]
        order = sorted(range(self.num_experts), key=lambda expert: (-counts[expert], expert))
        return [expert for expert in order[:number] if counts[expert]]

    def swaps(self, pinned: Sequence[Collection[int]]) -> list[tuple[int, int, int]]:
        """Return what should be pinned instead of what is: layer, the expert that goes and the one that comes.

        Args:
            pinned: of each layer.
        """
        found: list[tuple[int, int, int, int]] = []
        for layer, experts in enumerate(pinned):
            counts = self._counts[layer]
            cold = sorted(experts, key=lambda expert: counts[expert])[:MAX_SWAPS]
            others = [expert for expert in self.hottest(layer, len(experts) + MAX_SWAPS) if expert not in experts]
            for old, new in zip(cold, others, strict=False):
                if counts[new] > counts[old] + counts[old] // 4 + LEAST_GAIN:
                    found.append((counts[new] - counts[old], layer, old, new))
        return [(layer, old, new) for _, layer, old, new in sorted(found, reverse=True)[:MAX_SWAPS]]

    @property
    def is_due(self) -> bool:
        """Whether the file was not written for ten minutes."""
        return self._clock() - self._saved_at >= SAVE_INTERVAL_S

    def save(self) -> None:
        """Write the file where something has changed; a failure is logged, and the counts stay."""
        self._saved_at = self._clock()
        if self.path is None or not self._is_changed:
            return
        try:
            self._write(self.path)
        except OSError as error:
            _log.warning("expert usage is not kept", extra={"file": self.path.name, "code": error.errno})
        else:
            self._is_changed = False

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                file.writelines(
                    f"{layer} {expert} {count}\n"
                    for layer, counts in enumerate(self._counts)
                    for expert, count in enumerate(counts)
                    if count
                )
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _read(self, path: Path) -> None:
        try:
            if not path.exists():
                return
            self._counts = self._parse(read_bytes(path, MAX_FILE_BYTES))
        except (OSError, ValueError, CheckpointError):
            _log.warning("expert usage cannot be read and starts anew", extra={"file": path.name})
            return
        self._total = sum(map(sum, self._counts))

    def _parse(self, content: bytes) -> list[list[int]]:
        """Return the counts; raises `ValueError` for a file of another model, or none."""
        if not content.endswith(b"\n"):
            raise ValueError
        found = [[0] * self.num_experts for _ in range(self.num_layers)]
        for line in content.decode("ascii").splitlines():
            layer, expert, count = map(int, line.split(" "))
            if not (0 <= layer < self.num_layers and 0 <= expert < self.num_experts and 0 <= count <= MAX_COUNT):
                raise ValueError
            found[layer][expert] = count
        return found
