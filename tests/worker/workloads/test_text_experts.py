"""A step whose experts cannot be read ends its requests with a reason, and the worker serves on."""

from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.experts.options import ExpertsMode, ExpertsOptions
from models.registry import load
from models.step import NumericPath
from native import kernels
from tests.models.experts.slab_models import least_budget_of
from tests.models.families import QWEN3_MOE
from tests.support.tiny_families import write_family
from tests.worker.text_engines import failure_of, generate, request, running, tokens_of
from worker.engine import MAX_FAILURES_IN_A_ROW, EngineState
from worker.errors import CheckpointCorrupt
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")


async def test_experts_that_cannot_be_read_end_their_requests_alone(tmp_path: Path):
    folder = write_family(tmp_path / "tiny", QWEN3_MOE["qwen3_moe 4-bit"])
    file = folder / "model.safetensors"
    content = file.read_bytes()
    options = ExpertsOptions(ExpertsMode.SLAB, least_budget_of(folder))
    subject = TextWorkload(
        lambda report: load(open_checkpoint(folder), NumericPath.FAST, report, experts=options), TextSettings()
    )
    async with running(subject) as engine:
        expected = tokens_of(await generate(engine, request("before", tuple(range(40)), max_tokens=30)))
        with file.open("r+b") as weights:
            weights.truncate(1000)
        for number in range(MAX_FAILURES_IN_A_ROW + 1):
            error = failure_of(await generate(engine, request(f"amid {number}", tuple(range(50, 90)))))
            assert isinstance(error, CheckpointCorrupt)
            assert error.metadata["file"] == "model.safetensors"
            assert str(folder) not in error.message
        with file.open("r+b") as weights:
            weights.write(content)
        again = await generate(engine, request("after", tuple(range(40)), max_tokens=30))
        assert tokens_of(again) == expected
        assert engine.state is EngineState.READY
