"""The settings as they were read last: who holds to which of them, and which hold only from the next start on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from structlog.typing import FilteringBoundLogger

from gateway.settings import Settings

Apply = Callable[[Settings], None]


class LiveSettings:
    """All settings, and who is told when they are read again.

    Args:
        settings: as they are at the start.
        log: is told which changed, never their values.
    """

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        self._now = settings
        self._first = settings
        self._log = log
        self._followers: list[tuple[tuple[str, ...], Apply]] = []

    def now(self) -> Settings:
        """Return them as they were read last."""
        return self._now

    def follow(self, *keys: str, apply: Apply = lambda _: None) -> None:
        """Have `apply` called when one of some keys has changed.

        Args:
            keys: `section.key`, or `section` for all of it.
            apply: may not raise; of whoever looks at `now` each time, nothing needs to be done.
        """
        self._followers.append((keys, apply))

    def change(self, settings: Settings) -> None:
        """Hold to other settings from now on, as far as somebody follows them; of the rest the log tells."""
        changed = _differences(self._now, settings)
        left = {key for key in _differences(self._first, settings) if not self._is_followed(key)}
        self._now = settings
        if not changed:
            return
        self._log.info("settings changed", settings=sorted(changed))
        for keys, apply in self._followers:
            if any(_is_within(key, within) for key in changed for within in keys):
                apply(settings)
        if left:
            self._log.warning("settings hold only once the server starts again", settings=sorted(left))

    def _is_followed(self, key: str) -> bool:
        return any(_is_within(key, within) for keys, _ in self._followers for within in keys)


def _is_within(key: str, within: str) -> bool:
    return key == within or key.startswith(f"{within}.")


def _differences(old: Settings, new: Settings) -> set[str]:
    """Return the keys that differ; a list is one key."""
    before, after = _leaves(old), _leaves(new)
    return {key for key, value in after.items() if before[key] != value}


def _leaves(section: BaseModel, prefix: str = "") -> Mapping[str, Any]:
    """Return the values of a section by their keys."""
    leaves: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        leaves |= _leaves(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return leaves
