"""The command line with its real server, worker and models."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import mlx.core as mx
import pytest

from tests.support.served import Served, served
from tests.support.tiny_models import END_TOKEN_ID, write_llama, write_tensors
from tests.support.waiting import wait_until

COMMAND = (sys.executable, "-P", "-m", "gateway")


def pomona(*arguments: str, timeout_s: float = 50.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=timeout_s)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose greedy answers never end by themselves: the logit of its end token is always 0."""
    folder = write_llama(tmp_path_factory.mktemp("tiny") / "checkpoint")
    tensors = cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))
    tensors["lm_head.weight"][END_TOKEN_ID] = 0
    mx.eval(tensors)
    write_tensors(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Served]:
    with served("--model", f"tiny={tiny}", "--model", f"other={tiny}") as running:
        yield running


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def worker_pid(server: Served, model: str) -> int:
    shown = pomona("show", model, "--server", server.address, "--json")
    return int(json.loads(shown.stdout)["workers"][0]["pid"])


def test_chat_loads_the_model_and_streams_an_answer(server: Served) -> None:
    done = pomona("chat", "tiny", "hello", "--max-tokens", "8", "--temperature", "0", "--server", server.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "8 tokens" in done.stderr


def test_program_and_person_get_the_same_text(server: Served) -> None:
    arguments = ("chat", "tiny", "hello", "--max-tokens", "8", "--temperature", "0", "--server", server.address)
    events = [json.loads(line) for line in pomona(*arguments, "--json").stdout.splitlines()]
    text = "".join(event["delta"]["text"] for event in events if "delta" in event)
    assert events[-1]["completed"]["usage"]["completionTokens"] == 8
    assert pomona(*arguments).stdout.rstrip("\n") == text.rstrip("\n")


def test_model_is_loaded_shown_and_unloaded(server: Served) -> None:
    at = ("--server", server.address)
    assert pomona("load", "other", "--context-tokens", "128", *at).stdout == "other is active\n"
    pid = worker_pid(server, "other")
    assert is_running(pid)
    listed = {model["model"]: model["state"] for model in json.loads(pomona("models", "--json", *at).stdout)["models"]}
    assert listed["other"] == "MODEL_STATE_ACTIVE"
    assert pomona("unload", "other", *at).stdout.startswith("other is unloaded")
    assert not is_running(pid)


def test_what_holds_already_may_be_asked_for_without_a_reload(server: Served) -> None:
    at = ("--server", server.address)
    assert pomona("load", "other", *at).returncode == 0
    before = worker_pid(server, "other")
    shown = json.loads(pomona("show", "other", "--json", *at).stdout)["runtime"]["options"]
    same = ("--context-tokens", str(shown["contextTokens"]), "--max-batch-rows", str(shown["maxBatchRows"]))
    assert pomona("load", "other", *same, "--kv-scheme", shown["kvScheme"], *at).returncode == 0
    assert worker_pid(server, "other") == before
    lines = pomona("load", "other", "--max-batch-rows", "3", "--json", *at).stdout.splitlines()
    assert json.loads(lines[-1])["model"]["limits"]["maxBatchRows"] == 3
    assert worker_pid(server, "other") != before


def test_unknown_model_is_told_with_those_that_there_are(server: Served) -> None:
    done = pomona("chat", "tinny", "hello", "--server", server.address)
    assert done.returncode == 1
    assert done.stderr.startswith("error: NOT_FOUND MODEL_NOT_FOUND:")
    assert "tinny" in done.stderr
    assert done.stderr.endswith("There are: tiny, other. Did you mean tiny?\n")


def test_every_option_of_sampling_and_stopping_is_honoured(server: Served) -> None:
    sampling = ("--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.01", "--seed", "3")
    xtc = ("--xtc-probability", "0.5", "--xtc-threshold", "0.1", "--logit-bias", "3=-5")
    penalties = ("--repetition-penalty", "1.1", "--frequency-penalty", "0.1", "--presence-penalty", "0.1")
    stopping = ("--max-tokens", "6", "--min-tokens", "2", "--stop", "zzz", "--stop-id", "5", "--include-stop")
    options = (*sampling, *xtc, *penalties, "--penalty-window", "8", *stopping, "--ignore-eos")
    done = pomona("chat", "tiny", "hello", *options, "--server", server.address)
    assert done.returncode == 0, done.stderr


def test_value_that_only_the_server_knows_to_be_wrong_is_told_by_its_option(server: Served) -> None:
    done = pomona("chat", "tiny", "hello", "--stop-id", "4000000000", "--server", server.address)
    assert done.returncode == 1
    assert "INVALID_ARGUMENT INVALID_FIELD: --stop-id: token ids are below " in done.stderr


def test_ctrl_c_ends_the_request_on_the_server(server: Served) -> None:
    arguments = ("chat", "tiny", "hello", "--max-tokens", "3900", "--temperature", "0", "--server", server.address)
    with start(*arguments) as chat:
        assert chat.stdout is not None
        chat.stdout.read(1)
        chat.send_signal(signal.SIGINT)
        chat.communicate(timeout=10)
    assert chat.returncode == 130
    wait_until(lambda: requests_of(server) == [], timeout_s=10)


def test_answer_has_the_form_that_was_asked_for(server: Served) -> None:
    done = pomona("chat", "tiny", "hello", "--choices", "red,blue", "--max-tokens", "20", "--server", server.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout in {"red\n", "blue\n"}


def test_last_line_of_a_program_tells_how_an_answer_was_ended(tiny: Path) -> None:
    with served("--model", f"tiny={tiny}") as running:
        arguments = ("chat", "tiny", "hello", "--max-tokens", "3900", "--temperature", "0", "--json")
        for end, code, word in (("chat", 130, "CANCELLED"), ("server", 1, "UNAVAILABLE")):
            with start(*arguments, "--server", running.address) as chat:
                assert chat.stdout is not None
                chat.stdout.readline()
                ends = {"chat": (chat, signal.SIGINT), "server": (running.process, signal.SIGKILL)}
                ends[end][0].send_signal(ends[end][1])
                output, _ = chat.communicate(timeout=10)
            error = json.loads(output.splitlines()[-1])["error"]
            assert (chat.returncode, error["code"], bool(error["reason"])) == (code, word, True)


def test_mistyped_request_is_not_cancelled(server: Served) -> None:
    done = pomona("cancel", "nothing", "--server", server.address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no request nothing is in flight")


def test_refused_request_is_logged_with_its_reason_and_field(server: Served) -> None:
    pomona("chat", "tiny", "hello", "--stop-id", "4000000000", "--server", server.address)
    lines = [json.loads(line) for line in pomona("logs", "--json", "--server", server.address).stdout.splitlines()]
    fields = [line["fields"] for line in lines if line["message"] == "request ended"][-1]
    assert (fields["status"], fields["reason"], fields["field"]) == (
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "spec.stopping.stop_token_ids[0]",
    )


def requests_of(server: Served) -> list[dict[str, object]]:
    return json.loads(pomona("requests", "--json", "--server", server.address).stdout)["requests"]


def test_operator_sees_a_request_and_ends_it(server: Served) -> None:
    arguments = ("chat", "tiny", "hello", "--max-tokens", "3900", "--temperature", "0", "--server", server.address)
    with start(*arguments) as chat:
        assert chat.stdout is not None
        chat.stdout.read(1)
        (request,) = requests_of(server)
        cancelled = pomona("cancel", str(request["requestId"]), "--server", server.address)
        _, errors = chat.communicate(timeout=10)
    assert cancelled.stdout == f"{request['requestId']} is cancelled\n"
    assert (chat.returncode, "CANCELLED CANCELLED_BY_OPERATOR" in errors) == (1, True)


def test_logs_tell_of_the_load(server: Served) -> None:
    pomona("load", "tiny", "--server", server.address)
    done = pomona("logs", "--json", "--server", server.address)
    assert done.returncode == 0
    assert any(json.loads(line)["model"] == "tiny" for line in done.stdout.splitlines())


def test_sigterm_lets_a_running_answer_finish(tiny: Path) -> None:
    with served("--model", f"tiny={tiny}") as running:
        arguments = ("chat", "tiny", "hello", "--max-tokens", "60", "--temperature", "0", "--server", running.address)
        with start(*arguments) as chat:
            assert chat.stdout is not None
            chat.stdout.read(1)
            code = running.stop()
            _, statistics = chat.communicate(timeout=20)
        assert (code, chat.returncode) == (0, 0)
        assert "60 tokens" in statistics


def test_server_prints_one_line_on_standard_output(tiny: Path) -> None:
    with served("--model", f"tiny={tiny}", "--log-format", "json") as running:
        assert pomona("chat", "tiny", "hello", "--max-tokens", "2", "--server", running.address).returncode == 0
        assert running.stop() == 0
        assert running.process.stdout is not None
        assert running.process.stdout.read() == ""
    assert all(json.loads(line) for line in running.log)


def test_server_listens_on_a_unix_socket(tiny: Path, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/pomona.sock"
    with served("--model", f"tiny={tiny}", listen=address) as running:
        assert running.address == address
        assert pomona("chat", "tiny", "hello", "--max-tokens", "2", "--server", address).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "no-path"), "NAME=PATH"),
        (("--listen", "nowhere"), "HOST:PORT"),
        (("--settings", "/nonexistent/settings.toml"), "settings.toml"),
    ],
)
def test_wrong_settings_are_told_without_a_traceback(arguments: tuple[str, ...], words: str) -> None:
    done = pomona("serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_address_in_use_is_told_without_a_traceback(server: Served) -> None:
    done = pomona("serve", "--listen", server.address)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert server.address in done.stderr


@pytest.mark.real
def test_demo_streams_a_sensible_answer_and_leaves_nothing_behind() -> None:
    done = pomona("demo", "--json", "--prompt", "What is the capital of France?", "--max-tokens", "24")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "Paris" in result["answer"]
    assert result["tokens_per_second"] > 0
    assert result["speech"]["text"] == "He was not an ill-disposed young man."
    assert result["speech"]["real_time_factor"] > 0
    assert not servers_of_demos()


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_that_is_ended_leaves_nothing_behind(number: signal.Signals) -> None:
    with start("demo", "--max-tokens", "400") as demo:
        assert demo.stdout is not None
        demo.stdout.read(1)
        demo.send_signal(number)
        demo.communicate(timeout=30)
    assert demo.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    wait_until(lambda: not servers_of_demos(), timeout_s=20)


def servers_of_demos() -> list[str]:
    """Return the command lines of servers that were started with a lifeline."""
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True, timeout=10).stdout
    return [line for line in listed.splitlines() if "gateway serve --lifeline-fd" in line]


@pytest.mark.slow
@pytest.mark.real
def test_doctor_finds_this_machine_well() -> None:
    started = time.monotonic()
    done = pomona("doctor", "--json", timeout_s=58)
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    states = {finding["check"]: finding["state"] for finding in findings}
    assert (done.returncode, "fail" in states.values()) == (0, False), findings
    assert {"python", "apple", "mlx", "blas", "extension", "mapping", "footprint", "parity", "speed"} <= set(states)
    assert {"answer", "worker"} <= set(states)
    assert time.monotonic() - started < 58
