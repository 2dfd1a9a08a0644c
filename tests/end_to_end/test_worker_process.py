"""One worker process from its start to its end: loading, failing, stopping, and never outliving its gateway."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import model_pb2, worker_pb2
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from native import kernels
from tests.support.tiny_models import VOCAB_SIZE, write_llama
from tests.support.waiting import eventually, wait_until
from tests.support.worker_client import WorkerClient, chat, client_of, refusal_of, request, rest_of, stamps
from tests.support.worker_process import WorkerProcess, group_members

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[WorkerProcess] = []

    def started(checkpoint: Path | None = None, **settings: Any) -> WorkerProcess:
        workers.append(WorkerProcess(checkpoint or write_llama(tmp_path / "tiny"), **settings))
        return workers[-1]

    yield started
    for worker in workers:
        worker.end()


def events_of(worker: WorkerProcess) -> list[str]:
    return [str(line.get("event")) for line in worker.lines()]


def is_gone(worker: WorkerProcess) -> bool:
    return worker.exit_code() is not None and not group_members(worker.pid)


def endless() -> pb.StreamGenerateRequest:
    spec = pb.GenerationSpec(prompt="ab", stopping=pb.StoppingParams(ignore_eos=True, max_tokens=4000))
    return request(pb.StreamGenerateRequest, "endless", spec=spec)


async def streaming(client: WorkerClient) -> Any:
    message = endless()
    call = client.call(type(message), message.SerializeToString(), stamps(message))
    await call.read()
    return call


async def test_a_worker_loads_generates_and_stops_when_told(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        answer = await client.ask(request(spec=pb.GenerationSpec(chat=chat("hello"))))
        stopped = await client.gateway.Shutdown(worker_pb2.ShutdownRequest(), metadata=worker.metadata())

    assert answer.usage.completion_tokens == 4
    assert stopped.aborted_requests == 0
    assert await worker.exits() == 0
    assert group_members(worker.pid) == []


async def test_a_socket_that_cannot_be_made_is_an_exit_with_a_code_and_words(start: Start) -> None:
    worker = start(socket="/tmp/there/is/no/such/folder/w.sock")
    assert await worker.exits() == 71
    assert "the worker cannot listen on its socket" in events_of(worker)
    assert group_members(worker.pid) == []


@pytest.mark.parametrize(
    ("cpu_kernels", "event", "threads"),
    [
        (True, "native kernels compute", 1),
        (False, "MLX computes everything, without native kernels: cpu_kernels is off", None),
    ],
)
@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
async def test_a_worker_says_whose_kernels_compute_and_answers_with_either(
    start: Start, tmp_path: Path, cpu_kernels: bool, event: str, threads: int | None
) -> None:
    folder = write_llama(tmp_path / "tiny", quantization={"bits": 4, "group_size": 32})
    worker = start(folder, cpu_kernels=cpu_kernels, compute_threads=1)
    async with client_of(worker) as client:
        await client.is_active()
        answer = await client.ask(request(spec=pb.GenerationSpec(chat=chat("hello"))))

    assert answer.usage.completion_tokens == 4
    (line,) = [line for line in worker.lines() if line.get("event") == event]
    assert line.get("threads") == threads


async def test_the_handshake_is_answered_while_the_model_loads(start: Start, tmp_path: Path) -> None:
    large = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    worker = start(write_llama(tmp_path / "large", config=large))
    async with client_of(worker) as client:
        await client.gateway.Handshake(worker_pb2.HandshakeRequest(), metadata=worker.metadata(), wait_for_ready=True)
        call = client.gateway.WatchWorker(worker_pb2.WatchWorkerRequest(), metadata=worker.metadata())
        reports = [await call.read()]
        refusal = await client.refused(request())
        while reports[-1].state == model_pb2.MODEL_STATE_LOADING:
            reports.append(await call.read())
        call.cancel()

    assert refusal.reason == "MODEL_LOADING"
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert reports[0].state == model_pb2.MODEL_STATE_LOADING
    done = [report.load_progress.bytes_done for report in reports]
    assert done == sorted(done)
    assert reports[-1].state == model_pb2.MODEL_STATE_ACTIVE
    assert [report.HasField("model") for report in reports] == [False] * (len(reports) - 1) + [True]


def without_hidden_size(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"hidden_size"', '"hidden_sighs"'))


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def with_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def without_room_for_output(folder: Path) -> None:
    with_config(folder, max_position_embeddings=1)


def with_a_frequency_past_all_numbers(folder: Path) -> None:
    with_config(folder, rope_theta=1e-300)


def with_weights_that_are_no_numbers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "mlx"})


def with_a_token_too_many(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"extra{index}" for index in range(VOCAB_SIZE - tokenizer.get_vocab_size() + 1)])
    tokenizer.save(str(folder / "tokenizer.json"))


def gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("spoil", "reason", "word"),
    [
        (without_hidden_size, "CHECKPOINT_REJECTED", "hidden_size"),
        (truncated, "CHECKPOINT_CORRUPT", "model.safetensors"),
        (without_room_for_output, "CHECKPOINT_REJECTED", "max_position_embeddings"),
        (with_a_frequency_past_all_numbers, "CHECKPOINT_CORRUPT", "no numbers"),
        (with_weights_that_are_no_numbers, "CHECKPOINT_CORRUPT", "no numbers"),
        (with_a_token_too_many, "CHECKPOINT_REJECTED", "tokenizer.json: has token 288"),
        (gone, "CHECKPOINT_REJECTED", "tiny"),
    ],
)
async def test_a_load_that_fails_is_told_and_the_process_exits(
    start: Start, tmp_path: Path, spoil: Callable[[Path], None], reason: str, word: str
) -> None:
    folder = write_llama(tmp_path / "tiny")
    spoil(folder)
    worker = start(folder)
    async with client_of(worker) as client:
        report = await client.becomes(model_pb2.MODEL_STATE_FAILED)

    assert await worker.exits() == 3
    assert report.failure.reason == reason
    assert word in report.failure.message
    assert str(tmp_path) not in report.failure.message
    last = worker.lines()[-1]
    assert report.failure.message in last["event"]
    assert last["level"] == "error"


async def test_a_load_that_fails_unheard_ends_the_process_all_the_same(start: Start, tmp_path: Path) -> None:
    assert await start(tmp_path / "nothing").exits(20) == 3


async def test_shutdown_ends_what_runs_over_its_grace(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        call = await streaming(client)
        stopping = client.gateway.Shutdown(
            worker_pb2.ShutdownRequest(grace=Duration(nanos=1)), metadata=worker.metadata()
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rest_of(call)
        answer = await stopping

    refusal = refusal_of(raised.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADING")
    assert refusal.usage is not None
    assert answer.aborted_requests == 1
    assert await worker.exits() == 0


async def test_a_terminated_worker_finishes_its_streams_and_takes_no_new_ones(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        spec = pb.GenerationSpec(prompt="ab", stopping=pb.StoppingParams(ignore_eos=True, max_tokens=600))
        message = request(pb.StreamGenerateRequest, "last", spec=spec)
        call = client.call(type(message), message.SerializeToString(), stamps(message))
        first = await call.read()
        os.kill(worker.pid, signal.SIGTERM)
        await client.becomes(model_pb2.MODEL_STATE_DRAINING)
        refusal = await client.refused(request(request_id="late"))
        events = [first, *await rest_of(call)]

    assert refusal.reason == "MODEL_UNLOADING"
    assert events[-1].completed.usage.completion_tokens == 600
    assert await worker.exits() == 0


async def test_a_second_signal_ends_the_grace(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        call = await streaming(client)
        os.kill(worker.pid, signal.SIGTERM)
        await client.becomes(model_pb2.MODEL_STATE_DRAINING)
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError, match="unloaded"):
            await rest_of(call)

    assert await worker.exits(5) == 0


async def test_the_stacks_of_all_threads_are_written_on_request(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        os.kill(worker.pid, signal.SIGUSR1)
        await eventually(lambda: any("Current thread" in event for event in events_of(worker)), 20.0)

        assert any(event.startswith("Thread") for event in events_of(worker))
        assert (await client.ask(request())).usage.completion_tokens == 4


async def test_a_worker_and_its_child_are_gone_with_the_lifeline(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        call = await streaming(client)
        assert worker.children()
        worker.close_lifeline()
        await eventually(lambda: is_gone(worker))
        call.cancel()

    assert worker.exit_code() == -signal.SIGKILL


def test_a_worker_is_gone_with_the_lifeline_at_any_moment_of_its_start(start: Start, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    folder = write_llama(tmp_path / "tiny")
    for _ in range(10):
        worker = start(folder)
        moment = time.monotonic() + chance.uniform(0, 0.8)
        wait_until(lambda moment=moment: time.monotonic() >= moment)
        worker.close_lifeline()
        wait_until(lambda worker=worker: is_gone(worker))


async def test_a_killed_worker_leaves_no_child(start: Start) -> None:
    worker = start()
    async with client_of(worker) as client:
        await client.is_active()
        child = worker.children()
        os.kill(worker.pid, signal.SIGKILL)
        await eventually(lambda: is_gone(worker))
    assert len(child) == 1


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "worker", *arguments], capture_output=True, text=True, check=False, timeout=30
    )


def test_a_worker_started_by_hand_says_who_starts_it() -> None:
    result = run()
    assert result.returncode == 2
    assert "pomona serve" in result.stderr


def test_help_says_what_it_is() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "The gateway starts it" in result.stdout


def test_what_is_no_command_is_refused() -> None:
    assert run("dance").returncode == 2


def test_describe_prints_the_model_without_mlx_or_grpc(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny")
    code = (
        "import sys; sys.argv = ['worker', 'describe', sys.argv[1]]; import runpy, os; os._exit = sys.exit\n"
        "try: runpy.run_module('worker', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'mlx', 'grpc', 'asyncio'}))"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, str(folder)], capture_output=True, text=True, check=True, timeout=30
    )
    described, modules = result.stdout.splitlines()
    assert '"architecture": "llama"' in described
    assert modules == "[]"


def test_nothing_heavy_is_imported_before_the_lifeline() -> None:
    # `import worker` first: the finder of an editable install is no part of the worker.
    code = (
        "import sys, worker; before = set(sys.modules); import worker.lifeline; "
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert set(result.stdout.split()) <= LIGHT


LIGHT = {
    *("worker", "worker.lifeline", "signal", "threading", "enum", "types", "functools", "collections", "operator"),
    *("reprlib", "keyword", "itertools", "_operator", "_collections", "_functools", "_weakrefset"),
}


async def test_settings_that_are_wrong_end_the_process_with_the_key(start: Start) -> None:
    worker = start(max_batch_rows=0)
    assert await worker.exits() == 2
    assert "max_batch_rows" in events_of(worker)[-1]
