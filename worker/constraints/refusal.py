"""Why a constraint is not taken, in a form that passes between processes."""

from enum import Enum

from worker.errors import ConstraintInvalid, ConstraintTooComplex, FieldError, UnsupportedOption


class Reason(Enum):
    """What is the matter with a constraint."""

    INVALID = "invalid"
    TOO_COMPLEX = "too_complex"
    UNSUPPORTED = "unsupported"


class Refused(Exception):
    """Raised when a constraint cannot be taken, before it is known which field of the request it came in.

    Attributes:
        reason: what is the matter.
        problem: in words that clients may read.
    """

    def __init__(self, reason: Reason, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem

    def at(self, path: str) -> FieldError:
        """Return the error that names the field."""
        return _ERRORS[self.reason](path, self.problem)


def invalid(problem: str) -> Refused:
    """Return the refusal of what is wrong."""
    return Refused(Reason.INVALID, problem)


def too_complex(problem: str) -> Refused:
    """Return the refusal of what is over a limit."""
    return Refused(Reason.TOO_COMPLEX, problem)


def unsupported(problem: str) -> Refused:
    """Return the refusal of what is right but not enforced here."""
    return Refused(Reason.UNSUPPORTED, problem)


_ERRORS: dict[Reason, type[FieldError]] = {
    Reason.INVALID: ConstraintInvalid,
    Reason.TOO_COMPLEX: ConstraintTooComplex,
    Reason.UNSUPPORTED: UnsupportedOption,
}
