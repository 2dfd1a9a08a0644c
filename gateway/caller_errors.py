"""What the gateway refuses because of who calls; `errors.py` has the whole tree."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import CallerError


class CredentialsMissing(CallerError):
    """Raised when a call carries no token where one is needed."""

    text = "The call carries no token, and this server wants one."


class CredentialsInvalid(CallerError):
    """Raised when a call's token is none that this server knows, or was revoked under the call."""

    text = "The call's token is not one that this server knows."


class CredentialsExpired(CallerError):
    """Raised when a call's token was good until it expired."""

    text = "The call's token has expired."


@dataclass(eq=False)
class ScopeMissing(CallerError):
    """Raised when the caller may not do this; `problem` says why, `scope` is what would be needed."""

    scope: str
    problem: str

    text = "It is not allowed: {0.problem}."


@dataclass(eq=False)
class ModelForbidden(CallerError):
    """Raised when the caller may not use a model of this name, whether there is one or not."""

    model: str

    text = "The caller may not use a model named {0.model}."


@dataclass(eq=False)
class RateLimited(CallerError):
    """Raised when a caller is over a limit of its own; `limit` is which: `rate` or `streams`, and `most` its value."""

    caller: str
    limit: str
    most: int
    retry_after_s: float

    @property
    def words(self) -> str:
        """The limit for people."""
        calls = f"{self.most} call{'' if self.most == 1 else 's'}"
        return f"{calls} a minute" if self.limit == "rate" else f"{calls} open at once"

    text = "The caller is over its limit of {0.words}."
