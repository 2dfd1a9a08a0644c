"""Asks the constraints of rows what may come next, beside the engine's thread, while the device computes."""

from collections.abc import Sequence as Items
from functools import partial

from worker.job import Reporter
from worker.restriction import Failure, Restriction, restrictions_of
from worker.row import Row
from worker.sequence import TextRequest


class Inquiry:
    """One question to the constraints of some rows, begun at once.

    Args:
        rows: those without a constraint, and those whose answer is known, are not asked.
        reporter: has it done.
    """

    def __init__(self, rows: Items[Row], reporter: Reporter[TextRequest]) -> None:
        asked = [(row, row.sequence.constraint) for row in rows if row.restriction is None]
        known = [(row, constraint) for row, constraint in asked if constraint is not None]
        self._rows = [row for row, _ in known]
        constraints = [constraint for _, constraint in known]
        self._answers = reporter.aside(partial(restrictions_of, constraints)) if known else None

    @property
    def is_open(self) -> bool:
        """Whether anybody was asked."""
        return self._answers is not None

    def settle(self) -> list[tuple[Row, Failure]]:
        """Wait for the answers and give them to the rows; return those rows whose constraint failed."""
        failed: list[tuple[Row, Failure]] = []
        for row, answer in zip(self._rows, self._answers.result() if self._answers else (), strict=True):
            if isinstance(answer, Restriction):
                row.restriction = answer
            else:
                failed.append((row, answer))
        return failed
