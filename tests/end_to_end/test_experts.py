"""A mixture through a whole server with its experts held in every way: the same tokens, and what is told of it."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from pomona.v1 import common_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc
from pomona.v1 import generation_pb2 as g

from models.experts.mapped import can_map
from models.experts.pack import PACK_FILE
from tests.models.experts.holding import LARGE, write_mixture
from tests.support.served import Served, served
from tests.support.waiting import wait_until
from worker.fit import estimate

pytestmark = pytest.mark.skipif(not can_map(), reason="this install maps no files")
LIMIT_S = 60.0
NUM_TOKENS = 200
MODES = ("resident", "mapped", "slab")
BOUNDS = {"context_tokens": 512, "max_batch_rows": 4, "prefix_cache_bytes": 0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("mixture") / "model", LARGE)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of one model, whose pack may go."""
    return write_mixture(tmp_path_factory.mktemp("lone") / "model", LARGE)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.jsonl"


@pytest.fixture(scope="module")
def budget(checkpoint: Path) -> int:
    """Return bytes of slabs for about a tenth of the experts."""
    fewest = estimate(checkpoint, {**BOUNDS, "experts": "slab"}, 1)
    return fewest.options.expert_budget_bytes + 2_000_000


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, trace: Path, budget: int, lone: Path
) -> Iterator[Served]:
    entries: dict[str, dict[str, object]] = {mode: {"experts": mode} for mode in MODES}
    entries["slab"] |= {"expert_budget": budget}
    entries["open"] = {"expert_trace": str(trace)}
    entries["lone"] = {"checkpoint": str(lone)}
    common = {"checkpoint": str(checkpoint), "context_tokens": 512, "max_batch_rows": 4}
    lines = ["[supervision]", "heartbeat_s = 0.1", "[worker]", "prefix_cache_bytes = 0"]
    for name, entry in entries.items():
        keys = {"name": name, **common, **entry}
        lines += ["[[models]]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    settings = tmp_path_factory.mktemp("settings") / "pomona.toml"
    settings.write_text("\n".join(lines))
    with served("--settings", str(settings)) as running:
        yield running


@pytest.fixture
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def answer(channel: grpc.Channel, model: str, seed: int, num_tokens: int) -> list[int]:
    """Return the tokens of a greedy answer to a random prompt."""
    prompt = [random.Random(seed).randrange(3, 250) for _ in range(40)]
    spec = g.GenerationSpec(token_ids=common_pb2.TokenIds(ids=prompt))
    spec.sampling.temperature = 0
    spec.stopping.max_tokens = num_tokens
    spec.stopping.ignore_eos = True
    spec.output.token_ids = True
    request = g.StreamGenerateRequest(model=model, spec=spec)
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    responses = stub.StreamGenerate(request, timeout=LIMIT_S)
    return [token.id for response in responses for token in response.delta.tokens]


def told(channel: grpc.Channel, name: str) -> model_pb2.Model:
    stub = model_pb2_grpc.ModelServiceStub(channel)
    return stub.GetModel(model_pb2.GetModelRequest(model=name), timeout=LIMIT_S).model


def stats(channel: grpc.Channel, name: str) -> server_pb2.ModelStats:
    stub = server_pb2_grpc.ServerServiceStub(channel)
    return stub.GetStats(server_pb2.GetStatsRequest(models=[name]), timeout=LIMIT_S).models[0]


def pomona(server: Served, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "gateway", *arguments, "--server", server.address]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_every_mode_gives_the_same_tokens_and_tells_what_it_holds(
    server: Served, channel: grpc.Channel, budget: int
) -> None:
    resident, *others = (answer(channel, mode, 1, NUM_TOKENS) for mode in MODES)
    assert len(resident) == NUM_TOKENS
    assert others == [resident, resident]
    models = [told(channel, mode) for mode in MODES]
    assert [model.runtime.options.experts_mode for model in models] == [1, 2, 3]
    stored_bytes = models[0].experts.stored_bytes
    assert models[2].runtime.options.expert_budget_bytes == budget < stored_bytes / 2
    wait_until(lambda: stats(channel, "slab").expert_bytes_read_total > 10_000_000)
    memory, counted = told(channel, "slab").memory, stats(channel, "slab")
    assert budget * 0.9 < memory.expert_slab_bytes <= budget
    assert told(channel, "mapped").memory.mapped_expert_bytes == stored_bytes
    assert 0 < counted.expert_hit_ratio < 1
    assert counted.expert_stall_us_total > 0
    row = next(line for line in pomona(server, "models").stdout.splitlines() if line.startswith("slab "))
    assert f" of {stored_bytes / 1e6:.1f} MB" in row
    assert "lay in memory" in pomona(server, "show", "slab").stdout


def test_a_load_may_say_where_experts_lie(server: Served, channel: grpc.Channel, budget: int) -> None:
    resident = answer(channel, "open", 2, 20)
    assert told(channel, "open").runtime.options.experts_mode == model_pb2.EXPERTS_MODE_RESIDENT
    done = pomona(server, "load", "open", "--experts", "slab", "--expert-budget", str(budget))
    assert (done.returncode, done.stdout) == (0, "open is active\n")
    assert told(channel, "open").runtime.options.expert_budget_bytes == budget
    assert answer(channel, "open", 2, 20) == resident
    done = pomona(server, "load", "open", "--experts", "slab", "--expert-budget", "64KiB")
    assert done.returncode == 1
    assert "the budget for experts is too small; the least is --expert-budget" in done.stderr
    assert told(channel, "open").state == model_pb2.MODEL_STATE_ACTIVE
    assert pomona(server, "load", "open", "--experts", "auto").returncode == 0
    assert told(channel, "open").runtime.options.experts_mode == model_pb2.EXPERTS_MODE_RESIDENT


def test_a_worker_that_runs_stays_where_its_pack_is_gone(server: Served, channel: grpc.Channel, lone: Path) -> None:
    assert pomona(server, "load", "lone", "--experts", "mapped").returncode == 0
    pack, kept = lone / PACK_FILE, lone.parent / PACK_FILE
    pack.rename(kept)
    done = pomona(server, "load", "lone", "--context-tokens", "256")
    assert (done.returncode, "pomona load MODEL --experts auto does without" in done.stderr) == (1, True)
    running = told(channel, "lone")
    assert (running.state, running.runtime.options.context_tokens) == (model_pb2.MODEL_STATE_ACTIVE, 512)
    assert "bounds slabs, and the experts are mapped" in pomona(server, "load", "lone", "--expert-budget", "8M").stderr
    assert pomona(server, "load", "lone", "--experts", "auto", "--context-tokens", "256").returncode == 0
    options = told(channel, "lone").runtime.options
    assert (options.context_tokens, options.experts_mode) == (256, model_pb2.EXPERTS_MODE_RESIDENT)
    assert pomona(server, "unload", "lone").returncode == 0


def test_routing_is_summed_up_once_the_model_is_unloaded(server: Served, channel: grpc.Channel, trace: Path) -> None:
    answer(channel, "open", 3, 100)
    assert pomona(server, "unload", "open").returncode == 0
    command = [sys.executable, "-P", "-m", "gateway", "expert-trace", str(trace), "--window", "32", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout)
    assert {name: found[name] for name in ("layers", "chosen")} == {"layers": 2, "chosen": 3}
    assert found["tokens"] >= 139
