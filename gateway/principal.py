"""Who calls: what a token, or a certificate, stands for, and what it may do.

The caller of the RPC that the current task handles is kept in a context variable: tasks that the RPC starts inherit
it, and tasks of the server itself act as `ANYONE`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from gateway.caller_errors import ModelForbidden, ScopeMissing
from gateway.errors import CallerError

GENERATE = "generate"
EMBED = "embed"
TRANSCRIBE = "transcribe"
READ_MODELS = "models.read"
WRITE_MODELS = "models.write"
WRITE_ADAPTERS = "adapters.write"
ADMIN = "admin"
SCOPES = (GENERATE, EMBED, TRANSCRIBE, READ_MODELS, WRITE_MODELS, WRITE_ADAPTERS, ADMIN)
EVERY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """How much a caller may have of the server; None: as much as there is.

    Attributes:
        rate_per_minute: calls.
        streams: open at once: data-plane calls of every kind, and streams of the others.
        queue_share: of the places in which requests wait, more than 0 to 1; None is the server's setting.
    """

    rate_per_minute: int | None = None
    streams: int | None = None
    queue_share: float | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        name: unique among callers; empty for whoever calls a server without tokens.
        group: callers of one group share cached prompts.
        scopes: what it may do; `admin` stands for all of them.
        patterns: the models that it may know of and use, with `*` for any characters.
        limits: how much.
        refusal: of a caller who is not known: why, which it is told where it asks for a model.
    """

    name: str
    group: str
    scopes: frozenset[str]
    patterns: tuple[str, ...] = (EVERY_MODEL,)
    limits: CallerLimits = CallerLimits()
    refusal: CallerError | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything, for other callers' requests too."""
        return ADMIN in self.scopes

    @property
    def sees_all(self) -> bool:
        """Whether no model is hidden from it."""
        return EVERY_MODEL in self.patterns

    def check_scope(self, scope: str) -> None:
        """Refuse what needs a scope that this caller lacks; an empty one is everybody's.

        Raises:
            ScopeMissing: it lacks it.
        """
        if scope and scope not in self.scopes and not self.is_admin:
            raise ScopeMissing(scope, f"the caller lacks the scope {scope}")

    def may_use(self, names: Iterable[str]) -> bool:
        """Say whether a model with these names, its own and its aliases, is one of this caller's."""
        return self.sees_all or any(_is_match(pattern, name) for pattern in self.patterns for name in names)

    def check_model(self, asked: str, names: Iterable[str]) -> None:
        """Refuse a model that is not one of this caller's, whether it is there or not.

        Args:
            asked: the name in the request.
            names: of the model that it means, with its aliases; empty where there is none.

        Raises:
            ModelForbidden: it is not.
            CallerError: the caller is not known.
        """
        if not self.may_use((asked, *names)):
            raise self.refusal or ModelForbidden(asked)


ANYONE = Principal("", "", frozenset(SCOPES))
NOBODY = Principal("", "", frozenset(), ())

_CALLER: ContextVar[Principal] = ContextVar("caller", default=ANYONE)


def caller() -> Principal:
    """Return who called the RPC that this task handles; `ANYONE` without tokens, and for the server's own tasks."""
    return _CALLER.get()


@contextmanager
def acting_for(principal: Principal) -> Generator[None]:
    """Have `principal` be the caller within the block."""
    token = _CALLER.set(principal)
    try:
        yield
    finally:
        _CALLER.reset(token)


def _is_match(pattern: str, name: str) -> bool:
    """Say whether `name` is what `pattern` says, in which `*` stands for any characters, `/` among them."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not (name.startswith(first) and name.endswith(last)):
        return False
    position, end = len(first), len(name) - len(last)
    for part in middle:  # the earliest place of each leaves the most for the next
        found = name.find(part, position, end) if position <= end else -1
        if found < 0:
            return False
        position = found + len(part)
    return position <= end
