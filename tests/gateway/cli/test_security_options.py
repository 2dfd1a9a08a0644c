"""What `serve` says of who may call."""

from pathlib import Path

import pytest

from gateway.cli.security_options import SecurityOptions
from gateway.settings import SettingsError, load_settings

from .conftest import Run


def test_only_what_was_given_is_said() -> None:
    assert SecurityOptions().as_settings() == {}
    assert SecurityOptions(tokens=Path("t"), allow_plaintext=True).as_settings() == {
        "tokens": Path("t"),
        "allow_plaintext": True,
    }


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"tls_cert": "a"}, "go together"),
        ({"tls_key": "a"}, "go together"),
        ({"client_ca": "a"}, "needs tls_cert"),
        ({"token": "a"}, "security.token"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(told: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(None, {"security": told})


def test_relative_files_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {"security": {"tokens": "t", "tls_cert": "c", "tls_key": "k"}})
    assert (settings.security.tokens, settings.security.tls_key) == (tmp_path / "t", tmp_path / "k")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:0"], "--allow-plaintext"),
        (["--listen", "0.0.0.0:0", "--tokens", "none"], "needs TLS"),
        (["--tls-cert", "none"], "go together"),
        (["--tokens", "none"], "cannot be read"),
        (["--tls-cert", "none", "--tls-key", "none"], "cannot be read"),
    ],
)
def test_a_server_that_others_could_enter_is_not_started(run: Run, options: list[str], words: str) -> None:
    result = run("serve", *options)
    assert (result.exit_code, words in result.stderr) == (2, True)
