"""Whom credentials stand for, and that a changed file holds."""

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.caller_errors import CredentialsExpired, CredentialsInvalid, CredentialsMissing
from gateway.token_file import new_token
from gateway.tokens import Tokens
from tests.gateway.callers import bearer, grant, revoke


class Store:
    """Tokens over a file, with their log and their clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.capture = structlog.testing.LogCapture()
        self.now_s = datetime.now(UTC).timestamp()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.tokens = Tokens(path, log, lambda: self.now_s)

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.capture.entries]


def test_a_token_stands_for_its_entry(tmp_path: Path) -> None:
    metadata = grant(tmp_path / "t", "ci")
    assert Store(tmp_path / "t").tokens.entry_for(metadata).name == "ci"


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
def test_the_scheme_is_written_as_its_client_likes(tmp_path: Path, scheme: str) -> None:
    ((key, value),) = grant(tmp_path / "t", "ci")
    told = ((key, value.replace("Bearer ", scheme)),)
    assert Store(tmp_path / "t").tokens.entry_for(told).name == "ci"


def test_no_credentials_are_missing_ones(tmp_path: Path) -> None:
    grant(tmp_path / "t", "ci")
    with pytest.raises(CredentialsMissing):
        Store(tmp_path / "t").tokens.entry_for((("x-request-id", "r"),), ["some.host"])


def test_what_is_not_known_is_refused_without_saying_which_part(tmp_path: Path) -> None:
    ((_, good),) = grant(tmp_path / "t", "ci")
    store = Store(tmp_path / "t")
    stranger = new_token().text
    mixed = f"{good.rpartition('_')[0]}_{stranger.rpartition('_')[2]}"
    texts = [stranger, mixed.removeprefix("Bearer "), "", "x", good + "x", "pomona_\x00"]
    told: list[Any] = [bearer(text) for text in texts]
    told += [(("authorization", good.removeprefix("Bearer ")),), (("authorization", b"\xff"),)]
    told += [(("authorization", "Basic " + good),), (*bearer(stranger), ("authorization", good))]
    said = set[str]()
    for metadata in told:
        with pytest.raises(CredentialsInvalid) as caught:
            store.tokens.entry_for(metadata)
        said.add(str(caught.value))
    assert len(said) == 1


def test_a_token_that_ended_says_so_to_who_has_it_alone(tmp_path: Path) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    metadata = grant(tmp_path / "t", "ci", expires=end)
    store = Store(tmp_path / "t")
    assert store.tokens.entry_for(metadata).name == "ci"
    store.now_s = end.timestamp()
    with pytest.raises(CredentialsExpired):
        store.tokens.entry_for(metadata)
    ((key, value),) = metadata
    with pytest.raises(CredentialsInvalid):
        store.tokens.entry_for(((key, f"{value[:-1]}{'A' if value[-1] != 'A' else 'B'}"),))


def test_a_certificate_stands_for_the_entry_that_names_it(tmp_path: Path) -> None:
    grant(tmp_path / "t", "mac", sha256=None, certificate="mac.example")
    token = grant(tmp_path / "t", "ci")
    tokens = Store(tmp_path / "t").tokens
    assert tokens.entry_for((), ["other", "mac.example"]).name == "mac"
    assert tokens.entry_for(token, ["mac.example"]).name == "ci"
    with pytest.raises(CredentialsInvalid):  # what is wrong is not passed over for what else there is
        tokens.entry_for(bearer("x"), ["mac.example"])


async def test_a_changed_file_holds_once_it_is_read_again(tmp_path: Path) -> None:
    first = grant(tmp_path / "t", "first")
    store = Store(tmp_path / "t")
    second = grant(tmp_path / "t", "second")
    assert await store.tokens.refresh()
    revoke(tmp_path / "t", "first")
    assert await store.tokens.refresh()
    assert not await store.tokens.refresh()
    assert store.tokens.entry_for(second).name == "second"
    with pytest.raises(CredentialsInvalid):
        store.tokens.entry_for(first)
    assert [(one["added"], one["removed"]) for one in store.capture.entries] == [(["second"], []), ([], ["first"])]


@pytest.mark.parametrize("harm", ["broken", "open", "gone"])
async def test_a_file_that_is_spoilt_changes_nothing_and_is_told_once(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "t"
    metadata = grant(path, "ci")
    store = Store(path)
    if harm == "broken":
        path.write_text("{")
    elif harm == "open":
        grant(path, "more")
        path.chmod(0o644)
    else:
        path.unlink()
    assert [await store.tokens.refresh() for _ in range(3)] == [False, False, False]
    assert store.events == ["tokens not read again"]
    assert store.tokens.entry_for(metadata).name == "ci"


@pytest.mark.parametrize("harm", ["mode", "descriptors"])
async def test_what_is_mended_beside_the_file_has_it_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    path = tmp_path / "t"
    metadata = grant(path, "ci")
    store = Store(path)
    revoke(path, "ci")
    with monkeypatch.context() as broken:
        if harm == "mode":
            path.chmod(0o644)
        else:
            broken.setattr(os, "open", out_of_descriptors)
        assert not await store.tokens.refresh()
    path.chmod(0o600)
    assert await store.tokens.refresh()
    with pytest.raises(CredentialsInvalid):
        store.tokens.entry_for(metadata)


async def test_a_file_that_others_may_read_by_now_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    grant(path, "ci")
    store = Store(path)
    path.chmod(0o644)
    assert [await store.tokens.refresh() for _ in range(2)] == [False, False]
    assert store.events == ["tokens not read again"]


def out_of_descriptors(*_: Any, **__: Any) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
