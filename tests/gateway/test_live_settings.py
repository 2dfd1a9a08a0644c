"""Settings that are read again: who is told, and what only the next start brings."""

from typing import Any

import structlog

from gateway.live_settings import LiveSettings
from gateway.settings import Settings, load_settings


class Kept:
    def __init__(self, **first: Any) -> None:
        self.lines: list[Any] = []
        log = structlog.wrap_logger(None, processors=[self._note])
        self.live = LiveSettings(load_settings(None, first), log)
        self.told: list[Settings] = []

    def _note(self, _logger: Any, _name: str, event: Any) -> Any:
        self.lines.append(dict(event))
        raise structlog.DropEvent

    def change(self, **settings: Any) -> None:
        self.lines.clear()
        self.live.change(load_settings(None, settings))

    def line(self, event: str) -> list[str] | None:
        return next((line["settings"] for line in self.lines if line["event"] == event), None)


LEFT = "settings hold only once the server starts again"


def test_who_follows_a_key_is_told_and_nobody_else() -> None:
    kept = Kept()
    kept.live.follow("limits.max_requests", apply=kept.told.append)
    kept.change(limits={"max_waiting": 3})
    assert not kept.told
    kept.change(limits={"max_requests": 7})
    assert [one.limits.max_requests for one in kept.told] == [7]
    assert kept.live.now().limits.max_requests == 7


def test_a_section_is_all_of_its_keys() -> None:
    kept = Kept()
    kept.live.follow("limits", apply=kept.told.append)
    kept.change(limits={"max_requests": 7, "max_waiting": 3})
    assert len(kept.told) == 1
    assert kept.line("settings changed") == ["limits.max_requests", "limits.max_waiting"]


def test_what_nobody_follows_is_named_as_long_as_it_differs_from_the_start() -> None:
    kept = Kept(listen="127.0.0.1:0")
    kept.live.follow("models")
    kept.change(listen="127.0.0.1:1", grpc={"keepalive_s": 70})
    assert kept.line(LEFT) == ["grpc.keepalive_s", "listen"]
    kept.change(listen="127.0.0.1:1")
    assert kept.line(LEFT) == ["listen"]
    kept.change(listen="127.0.0.1:0")
    assert kept.line(LEFT) is None


def test_the_same_again_says_nothing() -> None:
    kept = Kept()
    kept.live.follow("models", apply=kept.told.append)
    kept.change()
    assert (kept.lines, kept.told) == ([], [])


def test_models_are_one_key_and_their_values_are_not_logged() -> None:
    kept = Kept()
    kept.live.follow("models", apply=kept.told.append)
    kept.change(models=[{"name": "a", "checkpoint": "/secret/a"}])
    assert kept.line("settings changed") == ["models"]
    assert "/secret" not in str(kept.lines)
