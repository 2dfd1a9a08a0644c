"""What is to run as long as the server does, although it breaks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import auth, followers
from gateway.auth import Guard
from gateway.caller_errors import CredentialsInvalid
from gateway.followers import Followers
from gateway.requests import Requests
from gateway.serving import _reload
from gateway.tokens import Tokens
from tests.gateway.callers import grant, revoke
from tests.support.waiting import eventually


class Logged:
    def __init__(self) -> None:
        self.capture = structlog.testing.LogCapture()
        self.log: Any = structlog.wrap_logger(None, processors=[self.capture])

    def told(self) -> list[tuple[str, str]]:
        return [(one["event"], one["part"]) for one in self.capture.entries if "part" in one]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers.lasting, "__defaults__", (0.001,))
    monkeypatch.setattr(auth, "LOOK_INTERVAL_S", 0.001)


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), None])
async def test_what_breaks_is_told_and_begun_again(failure: Exception | None) -> None:
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            if failure is not None:
                raise failure
            return
        await asyncio.Event().wait()

    logged = Logged()
    all_of_them = Followers(logged.log)
    all_of_them.begin({"work": work})
    await eventually(lambda: begun == 3)
    await all_of_them.stop()
    assert logged.told() == [("part of the server begins again", "work")] * 2


async def test_a_token_is_revoked_although_looking_once_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, logged = tmp_path / "t", Logged()
    metadata = grant(path, "ci")
    grant(path, "more")
    tokens = Tokens(path, logged.log)
    guard = Guard(tokens, Requests(), (), logged.log)

    async def no_thread(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    all_of_them = Followers(logged.log)
    with monkeypatch.context() as broken:
        broken.setattr(asyncio, "to_thread", no_thread)
        all_of_them.begin({"tokens": guard.follow})
        await eventually(lambda: bool(logged.told()))
    revoke(path, "ci")
    await eventually(lambda: tokens.entry(metadata[0][1].split("_")[1]) is None)
    await all_of_them.stop()
    with pytest.raises(CredentialsInvalid):
        tokens.entry_for(metadata)


async def test_a_reload_that_breaks_leaves_the_next_one() -> None:
    class Server:
        def __init__(self) -> None:
            self.logged = Logged()
            self.log = self.logged.log

        async def reload(self) -> None:
            raise RuntimeError("can't start new thread")

        def status(self) -> str:
            return "as before"

    class Notified:
        def __init__(self) -> None:
            self.said: list[str] = []

        def reloading(self, _now_s: float) -> None:
            self.said.append("reloading")

        def ready(self, status: str) -> None:
            self.said.append(status)

    server, notifier = Server(), Notified()
    told: list[Any] = [server, notifier]
    await _reload(*told)
    assert notifier.said == ["reloading", "as before"]
    assert [one["event"] for one in server.logged.capture.entries] == ["reload broke off"]
