"""What a constraint says of the tokens that come next, asked once for each draw."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker.errors import WorkerError
from worker.masks import Mask
from worker.sequence import Constraint, TokenNotAllowedError

# How a constraint fails, which ends its request and no other.
Failure = WorkerError | TokenNotAllowedError


@dataclass(frozen=True, slots=True)
class Restriction:
    """What may come next.

    Attributes:
        forced: tokens that come in any case, and are not drawn.
        mask: which may come behind them; None: all may.
    """

    forced: tuple[int, ...] = ()
    mask: Mask | None = None


def restrictions_of(constraints: Items[Constraint]) -> list[Restriction | Failure]:
    """Ask several constraints; where one fails, its error stands at its place."""
    return [_restriction_of(constraint) for constraint in constraints]


def _restriction_of(constraint: Constraint) -> Restriction | Failure:
    try:
        forced = constraint.skip()
        return Restriction(forced, None if constraint.is_complete else constraint.mask())
    except (WorkerError, TokenNotAllowedError) as error:
        return error
