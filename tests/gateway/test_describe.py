"""What one-shot workers say of checkpoints, and what becomes of it when they do not."""

import asyncio
import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pomona.v1 import model_pb2

from gateway.catalogue import CatalogueModel
from gateway.describe import Describer
from gateway.errors import CheckpointRejected, LoadError, ModelLoadFailed
from gateway.logs import LogRing, make_log
from gateway.process import Command
from tests.support.scarcity import descriptors_left

MODEL = CatalogueModel("model-a", Path("/secret/place/model"))


def describer(program: str, timeout_s: float = 20.0) -> Describer:
    return Describer(
        Command((sys.executable, "-c", program), dict(os.environ)),
        timeout_s,
        make_log(LogRing(10), "info", "json", io.StringIO()),
        asyncio.Semaphore(2),
    )


async def failure_of(program: str, timeout_s: float = 20.0) -> LoadError:
    with pytest.raises(LoadError) as caught:
        await describer(program, timeout_s).describe(MODEL)
    assert "secret" not in f"{caught.value} {vars(caught.value)}"
    return caught.value


async def test_a_description_is_the_message_that_was_printed() -> None:
    facts = await describer("""print('{"architecture": "llama", "limits": {"maxContextTokens": 9}}')""").describe(MODEL)
    assert facts == model_pb2.Model(architecture="llama", limits=model_pb2.ModelLimits(max_context_tokens=9))


@pytest.mark.parametrize(("task", "audio_s"), [("TASK_GENERATE", 0), ("TASK_TRANSCRIBE", 7)])
async def test_a_description_has_the_limits_that_the_model_would_have(task: str, audio_s: int) -> None:
    limits = model_pb2.ModelLimits(max_queue_requests=5, max_request_bytes=6)
    limits.max_audio_duration.seconds = limits.default_idle_timeout.seconds = 7
    program = f"""print('{{"tasks": ["{task}"], "limits": {{"maxContextTokens": 9}}}}')"""
    found = (await replace(describer(program), limits=limits).describe(MODEL)).limits
    assert (found.max_context_tokens, found.max_queue_requests, found.max_request_bytes) == (9, 5, 6)
    assert (found.max_audio_duration.seconds, found.default_idle_timeout.seconds) == (audio_s, audio_s)
    assert found.HasField("max_audio_duration") == bool(audio_s)


async def test_the_path_of_the_checkpoint_is_the_last_argument() -> None:
    program = """import json, sys; print(json.dumps({"architecture": sys.argv[-1]}))"""
    assert (await describer(program).describe(MODEL)).architecture == "/secret/place/model"


async def test_settings_that_decide_what_the_model_can_do_come_behind_the_path() -> None:
    program = """import json, sys; print(json.dumps({"architecture": "|".join(sys.argv[1:])}))"""
    model = replace(MODEL, reasoning_marks=("<a>", "</a>"), tool_dialect="glm", task="rerank")
    said = (await describer(program).describe(model)).architecture
    told = '{"reasoning_marks": ["<a>", "</a>"], "tool_dialect": "glm", "task": "rerank"}'
    assert said == f"/secret/place/model|{told}"


async def test_what_mlx_lm_may_compute_is_told_where_it_may() -> None:
    program = """import json, sys; print(json.dumps({"architecture": sys.argv[-1]}))"""
    allowing = replace(describer(program), allow_mlx_lm=True)
    assert (await allowing.describe(MODEL)).architecture == '{"allow_mlx_lm": true}'


async def test_a_rejected_checkpoint_is_told_with_its_facts() -> None:
    said = '{"reason": "CHECKPOINT_REJECTED", "message": "no hidden_size", "metadata": {"file": "config.json"}}'
    error = await failure_of(f"print('{said}'); raise SystemExit(3)")
    assert isinstance(error, CheckpointRejected)
    assert (error.model, error.problem, error.facts) == ("model-a", "no hidden_size", {"file": "config.json"})


@pytest.mark.parametrize(
    "program",
    [
        "raise RuntimeError('/secret/place')",
        "print('[]'); raise SystemExit(3)",
        "print('{}'); raise SystemExit(3)",
        "print('no json')",
        """print('{"architecture": 3}')""",
        "print('x' * 3_000_000)",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
async def test_what_is_no_description_is_a_failed_load(program: str) -> None:
    assert isinstance(await failure_of(program), ModelLoadFailed)


async def test_a_description_that_does_not_come_is_a_failed_load() -> None:
    assert isinstance(await failure_of("import time; time.sleep(60)", timeout_s=0.3), ModelLoadFailed)


@pytest.mark.parametrize("left", range(6))
async def test_a_description_for_which_no_process_starts_is_a_failed_load(left: int) -> None:
    with descriptors_left(left):
        assert isinstance(await failure_of("print('{}')"), ModelLoadFailed)
