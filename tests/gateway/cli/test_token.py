"""Tokens, made and revoked on the command line."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.token_file import parts_of, read_tokens

from .conftest import Run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("POMONA_SECURITY__TOKENS", raising=False)
    return tmp_path / "pomona" / "tokens.json"


def test_a_token_is_printed_alone_and_once(run: Run, file: Path) -> None:
    result = run("token", "create", "ci", "--scope", "generate", "--tokens", str(file.parent.parent / "t"))
    parts = parts_of(result.stdout.removesuffix("\n"))
    assert result.exit_code == 0
    assert parts is not None
    (entry,) = read_tokens(file.parent.parent / "t")
    assert (entry.name, entry.id, entry.is_secret(parts[1])) == ("ci", parts[0], True)
    assert "--tokens" in result.stderr
    listed = run("token", "list", "--tokens", str(file.parent.parent / "t"))
    assert parts[1] not in listed.stdout + (file.parent.parent / "t").read_text()


def test_everything_that_was_granted_is_in_the_file(run: Run, file: Path) -> None:
    begun = datetime.now(UTC)
    options = ["--scope", "generate", "--scope", "models.read", "--model", "qwen*", "--model", "org/a"]
    options += ["--expires", "30d", "--rate", "60", "--streams", "4", "--queue-share", "0.25", "--group", "team"]
    assert run("token", "create", "ci", *options).exit_code == 0
    (entry,) = read_tokens(file)
    assert (entry.scopes, entry.models, entry.group) == (("generate", "models.read"), ("qwen*", "org/a"), "team")
    assert (entry.rate_per_minute, entry.streams, entry.queue_share) == (60, 4, 0.25)
    assert entry.expires is not None
    assert abs(entry.expires - begun - timedelta(days=30)) < timedelta(minutes=1)
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_without_more_a_token_is_for_every_model_and_its_own_group_and_never_ends(run: Run, file: Path) -> None:
    run("token", "create", "ci", "--scope", "embed")
    (entry,) = read_tokens(file)
    assert (entry.models, entry.group, entry.expires, entry.rate_per_minute) == (("*",), "ci", None, None)


def test_a_certificate_takes_the_place_of_a_token(run: Run, file: Path) -> None:
    result = run("token", "create", "mac", "--scope", "admin", "--certificate", "mac.example")
    assert (result.exit_code, result.stdout) == (0, "")
    (entry,) = read_tokens(file)
    assert (entry.certificate, entry.sha256) == ("mac.example", None)


def test_json_has_the_token_and_no_hash(run: Run, file: Path) -> None:
    made = json.loads(run("token", "create", "ci", "--scope", "generate", "--json").stdout)
    assert parts_of(made["token"]) is not None
    assert (made["entry"]["name"], "sha256" in made["entry"]) == ("ci", False)
    (listed,) = json.loads(run("token", "list", "--json").stdout)["tokens"]
    assert listed == made["entry"]
    assert {"ratePerMinute", "queueShare"} < set(listed)
    assert json.loads(run("token", "revoke", "ci", "--json").stdout) == {"revoked": "ci"}
    again = run("token", "revoke", "ci", "--json")
    assert (again.exit_code, json.loads(again.stdout)["error"]["reason"]) == (2, "USAGE")
    assert file.exists()


def test_tokens_are_listed_with_what_they_are_good_for(run: Run, file: Path) -> None:
    run("token", "create", "ci", "--scope", "generate", "--model", "qwen*", "--rate", "60", "--streams", "4")
    run("token", "create", "mac", "--scope", "admin", "--certificate", "mac.example")
    lines = run("token", "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "ID", "SCOPES", "MODELS", "GROUP", "EXPIRES", "RATE", "STREAMS"]
    assert lines[1].split() == ["ci", read_tokens(file)[0].id, "generate", "qwen*", "ci", "never", "60/min", "4"]
    assert lines[2].split() == ["mac", "certificate", "mac.example", "admin", "*", "mac", "never"]


def test_a_token_that_is_revoked_is_gone(run: Run, file: Path) -> None:
    run("token", "create", "a", "--scope", "generate")
    run("token", "create", "b", "--scope", "generate")
    assert run("token", "revoke", "a").exit_code == 0
    assert [entry.name for entry in read_tokens(file)] == ["b"]
    again = run("token", "revoke", "a")
    assert (again.exit_code, "there are: b" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["ci"], "--scope"),
        (["ci", "--scope", "fly"], "there is no scope fly"),
        (["c i", "--scope", "generate"], "NAME"),
        (["ci", "--scope", "generate", "--model", "a b"], "--model"),
        (["ci", "--scope", "generate", "--group", "a b"], "--group"),
        (["ci", "--scope", "generate", "--expires", "soon"], "--expires"),
        (["ci", "--scope", "generate", "--expires", "0d"], "--expires"),
        (["ci", "--scope", "generate", "--expires", "9999999d"], "--expires"),
        (["ci", "--scope", "generate", "--rate", "0"], "--rate"),
        (["ci", "--scope", "generate", "--streams", "0"], "--streams"),
    ],
)
def test_what_cannot_be_granted_is_refused_by_its_option(run: Run, file: Path, options: list[str], words: str) -> None:
    result = run("token", "create", *options)
    assert (result.exit_code, words in result.stderr, result.stdout) == (2, True, "")
    assert not file.exists()


def test_a_second_token_of_a_name_is_refused(run: Run, file: Path) -> None:
    run("token", "create", "ci", "--scope", "generate")
    before = file.read_bytes()
    second = run("token", "create", "ci", "--scope", "admin")
    assert (second.exit_code, "pomona token revoke ci" in second.stderr) == (2, True)
    assert file.read_bytes() == before


def test_a_file_that_is_not_trusted_is_told(run: Run, file: Path) -> None:
    run("token", "create", "ci", "--scope", "generate")
    file.chmod(0o644)
    for verb in (["list"], ["create", "b", "--scope", "generate"], ["revoke", "ci"]):
        result = run("token", *verb)
        assert (result.exit_code, "chmod 600" in result.stderr) == (1, True)
