"""Turns through a whole server: two workers share the CPU as if it were a GPU, and say what they say alone."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from pomona.v1 import (
    common_pb2,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
)

from tests.support.served import served
from tests.support.tiny_models import write_llama
from tests.support.waiting import wait_until
from tests.support.worker_client import refusal_of

TIMEOUT_S = 30.0
NAMES = ("first", "second")
HOLD_S = 0.5


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    checkpoint = json.dumps(str(write_llama(folder / "tiny")))
    models = "".join(f'[[models]]\nname = "{name}"\ncheckpoint = {checkpoint}\n' for name in NAMES)
    settings = folder / "pomona.toml"
    told = f'[turns]\ngpu_turns = "on"\nburst_s = 0.005\nhold_s = {HOLD_S}\n[worker]\nprefix_cache_bytes = 0\n'
    quick = "[supervision]\nheartbeat_s = 0.1\nlost_after = 1000\nsuspect_after = 1000\nterm_s = 0.5\n"
    settings.write_text(models + told + quick)
    with served("--settings", str(settings)) as running:
        yield running.address


@pytest.fixture
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address) as opened:
        yield opened


def generated(channel: grpc.Channel, model: str, prompt: range, num_tokens: int) -> list[int]:
    spec = generation_pb2.GenerationSpec(
        token_ids=common_pb2.TokenIds(ids=prompt),
        sampling=generation_pb2.SamplingParams(temperature=0.0),
        stopping=generation_pb2.StoppingParams(max_tokens=num_tokens, ignore_eos=True),
        output=generation_pb2.OutputOptions(token_ids=True),
    )
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    answer = stub.Generate(generation_pb2.GenerateRequest(model=model, spec=spec), timeout=TIMEOUT_S)
    return [token.id for token in answer.sequences[0].tokens]


def stats(channel: grpc.Channel) -> dict[str, server_pb2.ModelStats]:
    answer = server_pb2_grpc.ServerServiceStub(channel).GetStats(server_pb2.GetStatsRequest(), timeout=TIMEOUT_S)
    return {one.model: one for one in answer.models}


def worker_of(channel: grpc.Channel, model: str) -> Any:
    request = model_pb2.GetModelRequest(model=model)
    return model_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=TIMEOUT_S).model.workers[0]


def test_two_workers_that_take_turns_say_what_they_say_alone(channel: grpc.Channel):
    prompts = {"first": range(2, 150), "second": range(5, 40)}
    alone = {name: generated(channel, name, prompts[name], 40) for name in NAMES}
    together: dict[str, list[list[int]]] = {name: [] for name in NAMES}

    def ask(name: str) -> None:
        together[name].extend(generated(channel, name, prompts[name], 40) for _ in range(5))

    threads = [threading.Thread(target=ask, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert together == {name: [alone[name]] * 5 for name in NAMES}
    wait_until(lambda: all(one.turn_wait_us_total and one.turn_held_us_total for one in stats(channel).values()))
    assert all(any(each.name == "turn_wait" for each in one.durations) for one in stats(channel).values())


def test_a_worker_that_stops_in_its_turn_is_ended_and_the_other_goes_on(channel: grpc.Channel):
    alone = {name: generated(channel, name, range(2, 40), 10) for name in NAMES}
    pid = worker_of(channel, "first").pid
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    spec = generation_pb2.GenerationSpec(
        token_ids=common_pb2.TokenIds(ids=range(2, 40)),
        stopping=generation_pb2.StoppingParams(max_tokens=400, ignore_eos=True),
    )
    call: Any = stub.StreamGenerate(generation_pb2.StreamGenerateRequest(model="first", spec=spec), timeout=TIMEOUT_S)
    next(call)
    os.kill(pid, signal.SIGSTOP)
    assert generated(channel, "second", range(2, 40), 10) == alone["second"]
    with pytest.raises(grpc.RpcError) as refused:
        list(call)
    error: Any = refused.value
    assert (error.code(), refusal_of(error).reason) == (grpc.StatusCode.UNAVAILABLE, "WORKER_STALLED")
    assert generated(channel, "first", range(2, 40), 10) == alone["first"]
    assert worker_of(channel, "first").pid != pid
