"""The file of tokens: what is in it, who may read it, and that changes are whole."""

import hashlib
import json
import multiprocessing
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway import token_file
from gateway.token_file import TokenEntry, TokenFileError, change_tokens, new_token, parts_of, read_tokens
from tests.gateway.callers import grant


def entry(name: str = "ci", **facts: Any) -> TokenEntry:
    made = new_token()
    told: dict[str, Any] = {"id": made.id, "sha256": made.sha256, "group": name, "created": datetime.now(UTC)}
    told |= {"scopes": ("generate",), **facts}
    return TokenEntry(name=name, **told)


def test_a_token_is_256_random_bits_and_the_file_has_only_their_hash(tmp_path: Path) -> None:
    made = new_token()
    parts = parts_of(made.text)
    assert parts is not None
    assert re.fullmatch(r"pomona_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", made.text)
    assert (parts[0], hashlib.sha256(parts[1].encode()).hexdigest()) == (made.id, made.sha256)
    ((_, header),) = grant(tmp_path / "tokens.json", "ci")
    text = (tmp_path / "tokens.json").read_text()
    assert header.rpartition("_")[2] not in text
    assert header.removeprefix("Bearer ") not in text


def test_two_tokens_are_never_the_same() -> None:
    assert len({new_token().text for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "text", ["", "pomona_", "pomona_0123456789ab_short", "x" * 10_000, "pomona_0123456789AB_" + "a" * 43]
)
def test_what_is_no_token_has_no_parts(text: str) -> None:
    assert parts_of(text) is None


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    grant(path, "ci")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tokens.json.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_not_trusted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    grant(path, "ci")
    path.chmod(mode)
    with pytest.raises(TokenFileError, match="chmod 600"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"format": 2}', "format"),
        ('{"format": 1, "tokens": [], "more": 1}', "more"),
        ('{"tokens": [{"name": "s3cret"}]}', "tokens.0"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_its_content(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "tokens.json"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(TokenFileError, match=re.escape(words)) as caught:
        read_tokens(path)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_file_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TokenFileError, match="cannot be read"):
        read_tokens(tmp_path / "none")
    with pytest.raises(TokenFileError, match="cannot be read"):
        read_tokens(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(TokenFileError, match="no file"):
        read_tokens(tmp_path / "pipe")
    grant(tmp_path / "tokens.json", "ci")
    monkeypatch.setattr(token_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(TokenFileError, match="larger than 10 bytes"):
        read_tokens(tmp_path / "tokens.json")


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "has space"},
        {"name": ""},
        {"name": "x" * 65},
        {"name": "\u00fcber"},
        {"group": "a\nb"},
        {"scopes": ()},
        {"scopes": ("generate", "fly")},
        {"models": ()},
        {"models": ("a\tb",)},
        {"sha256": "00"},
        {"sha256": None},
        {"certificate": "host"},
        {"rate_per_minute": 0},
        {"streams": 0},
        {"queue_share": 0.0},
        {"queue_share": 1.5},
        {"expires": datetime(2030, 1, 1)},  # noqa: DTZ001 - without a time zone it is no moment
    ],
)
def test_an_entry_that_cannot_be_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        entry(**{"name": "ci", **facts})


def test_an_entry_is_kept_as_it_was_given(tmp_path: Path) -> None:
    told = entry(
        models=("a*", "org/b"),
        expires=datetime(2030, 1, 1, tzinfo=UTC),
        rate_per_minute=60,
        streams=4,
        queue_share=0.25,
        group="team",
    )
    change_tokens(tmp_path / "t", lambda _: [told])
    assert read_tokens(tmp_path / "t") == (told,)
    who = told.principal()
    assert (who.name, who.group, who.scopes, who.patterns) == ("ci", "team", {"generate"}, ("a*", "org/b"))
    assert (who.limits.rate_per_minute, who.limits.streams, who.limits.queue_share) == (60, 4, 0.25)


def test_an_entry_ends_when_it_says() -> None:
    end = datetime(2030, 1, 1, tzinfo=UTC)
    told = entry(expires=end)
    assert not told.is_expired((end - timedelta(seconds=1)).timestamp())
    assert told.is_expired(end.timestamp())
    assert not entry().is_expired(1e12)


def test_only_its_own_secret_opens_an_entry() -> None:
    made = new_token()
    parts = parts_of(made.text)
    assert parts is not None
    assert entry(id=made.id, sha256=made.sha256).is_secret(parts[1])
    assert not entry().is_secret(parts[1])
    assert not entry(sha256=None, certificate="host").is_secret("")


@pytest.mark.parametrize("what", ["name", "id", "certificate"])
def test_two_entries_that_are_one_are_refused_and_nothing_changes(tmp_path: Path, what: str) -> None:
    path = tmp_path / "t"
    first, second = entry("a", sha256=None, certificate="h1"), entry("b", sha256=None, certificate="h2")
    change_tokens(path, lambda _: [first])
    before = path.read_bytes()
    twin = second.model_copy(update={what: getattr(first, what)})
    with pytest.raises(TokenFileError, match=f"the same {what}"):
        change_tokens(path, lambda entries: [*entries, twin])
    assert path.read_bytes() == before


def test_a_change_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    grant(path, "ci")
    before = path.read_bytes()

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TokenFileError, match="No space left"):
        grant(path, "second")
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t", "t.lock"]


def test_a_lock_that_another_holds_is_waited_for_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "LOCK_LIMIT_S", 0.1)

    def change(entries: tuple[TokenEntry, ...]) -> tuple[TokenEntry, ...]:
        with pytest.raises(TokenFileError, match="being changed by another"):
            grant(tmp_path / "t", "inner")
        return entries

    assert change_tokens(tmp_path / "t", change) == ()


def _grant_ten(path: Path, mark: str) -> None:
    for number in range(10):
        grant(path, f"{mark}{number}")


def test_processes_that_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_grant_ten, args=(tmp_path / "t", mark)) for mark in "ab"]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert len(json.loads((tmp_path / "t").read_text())["tokens"]) == 20
