"""What a checkpoint is for follows from its files or the settings, and is told before and after the load."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from pomona.v1 import model_pb2

from models.checkpoint.errors import CheckpointRejected
from tests.support.tiny_embedders import DIMENSIONS, TIED, write_embedder, write_pooling, write_reranker
from tests.support.tiny_families import Tiny
from tests.support.tiny_models import write_llama, write_tensors
from tests.worker.embedding.driving import LAST, Driven, asking
from worker.describe import describe
from worker.embedding.bounds import MAX_INPUTS, max_inputs
from worker.embedding.hosting import EmbeddingHosting
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.loading import loaded_encoder_message, make_embedding_workload
from worker.errors import ModelLoadFailed
from worker.kinds import make_hosting
from worker.settings import SettingsError, WorkerSettings, read_some
from worker.text_hosting import TextHosting

Task = model_pb2.Model.Task


def told(folder: Path, **changes: Any) -> WorkerSettings:
    return WorkerSettings(instance_id="i", model="m", checkpoint=str(folder), socket="/tmp/s", secret="s", **changes)


def loaded_from(folder: Path, *, is_reranker: bool = False, **changes: Any) -> LoadedEncoder:
    return make_embedding_workload(told(folder, **changes), is_reranker=is_reranker).load(lambda _: None)


@pytest.mark.parametrize(
    ("has_files", "task", "expected"),
    [
        (True, None, Task.TASK_EMBED),
        (True, "generate", Task.TASK_GENERATE),
        (False, None, Task.TASK_GENERATE),
        (False, "embed", Task.TASK_EMBED),
        (False, "generate", Task.TASK_GENERATE),
    ],
)
def test_the_settings_go_before_what_files_say(
    tmp_path: Path, has_files: bool, task: Any, expected: Task.ValueType
) -> None:
    folder = write_llama(tmp_path / "tiny")
    if has_files:
        write_pooling(folder)
    assert list(describe(folder, task=task).tasks) == [expected]

    async def hosting() -> object:
        return make_hosting(told(folder, task=task), None)

    kind = TextHosting if expected == Task.TASK_GENERATE else EmbeddingHosting
    assert isinstance(asyncio.run(hosting()), kind)


def test_what_is_said_before_the_load_holds_after_it(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny")
    said, loaded = describe(folder), loaded_from(folder)
    message = loaded_encoder_message(loaded, told(folder))
    assert (message.revision, message.embedding, message.tasks) == (said.revision, said.embedding, said.tasks)
    assert message.limits.max_context_tokens == said.limits.max_context_tokens == 4096
    assert message.limits.max_embed_inputs == MAX_INPUTS
    assert message.runtime.path == "fast"
    assert message.memory.weights_bytes > 0
    assert not message.runtime.speculation


def test_a_length_of_the_files_is_the_context(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 77}))
    assert describe(folder).limits.max_context_tokens == loaded_from(folder).max_tokens == 77
    assert loaded_from(folder, context_tokens=50).max_tokens == 50


def test_a_head_is_neither_needed_nor_kept(tmp_path: Path) -> None:
    tied, untied = Tiny("qwen3", TIED), Tiny("qwen3")
    with_head = write_embedder(tmp_path / "with", tiny=untied)
    without = write_embedder(tmp_path / "without", tiny=untied)
    tensors: Any = mx.load(str(without / "model.safetensors"))
    del tensors["lm_head.weight"]
    write_tensors(without, tensors)
    same = write_embedder(tmp_path / "tied", tiny=tied)
    found = [loaded_from(folder) for folder in (with_head, without, same)]
    assert len({each.model.weights_bytes for each in found}) == 1
    values = [Driven(each).encode(asking("r", [1, 2, 3], wish=LAST)) for each in found]
    assert values[0] == values[1] == values[2]


def test_published_names_without_their_prefix_are_read(tmp_path: Path) -> None:
    bare = write_embedder(tmp_path / "bare", tiny=Tiny("qwen3", TIED, style="bare"))
    plain = write_embedder(tmp_path / "plain")
    first, second = (Driven(loaded_from(folder)).encode(asking("r", [1, 2])) for folder in (bare, plain))
    assert first == second


def test_what_cannot_rank_is_not_loaded_to_rank(tmp_path: Path) -> None:
    llama, embedder = write_llama(tmp_path / "llama"), write_embedder(tmp_path / "embedder")
    for folder, problem in ((llama, "of llama no reranker is known"), (embedder, "no token yes")):
        for load in (lambda at: describe(at, task="rerank"), lambda at: loaded_from(at, is_reranker=True)):
            with pytest.raises(ModelLoadFailed, match=problem) as caught:
                load(folder)
            assert caught.value.metadata == {"option": "task"}


def test_files_that_ask_for_more_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny", mode="max_tokens")
    for load in (describe, loaded_from):
        with pytest.raises(CheckpointRejected, match=r"1_Pooling/config\.json: pooling_mode_max_tokens"):
            load(folder)


def test_as_many_inputs_may_come_as_whole_vectors_fit_an_answer(tmp_path: Path) -> None:
    embedder = loaded_from(write_embedder(tmp_path / "a"))
    reranker = loaded_from(write_reranker(tmp_path / "b"), is_reranker=True)
    assert max_inputs(embedder, 16 << 20) == max_inputs(reranker, 16 << 20) == MAX_INPUTS
    assert max_inputs(embedder, 1024 + 10 * (4 * DIMENSIONS + 32)) == 10
    assert max_inputs(embedder, 10) == 1
    assert max_inputs(replace(reranker), 1024 + 10 * 32) == 10


def test_no_other_task_is_a_setting() -> None:
    with pytest.raises(SettingsError, match="task"):
        read_some('{"task": "transcribe"}', ["task"])


def test_hosting_costs_no_start_of_what_writes_text() -> None:
    code = "import sys; import worker.embedding.hosting; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    modules = set(run.stdout.splitlines())
    assert "worker.workloads.embedding" in modules
    assert not modules & {"llguidance", "worker.loading", "worker.constraints.compiler", "worker.workloads.text"}


def test_headers_are_described_without_mlx(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny")
    code = f"import sys; from worker.describe import main; main([{str(folder)!r}]); print('mlx.core' in sys.modules)"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout.splitlines()[-1] == "False"
    assert "TASK_EMBED" in run.stdout


def test_routed_experts_are_told(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "tiny", tiny=Tiny("qwen3_moe", TIED))
    for said in (describe(folder), loaded_encoder_message(loaded_from(folder), told(folder))):
        assert (said.experts.layers, said.experts.experts_per_layer, said.experts.experts_per_token) == (2, 8, 3)
    assert not describe(write_embedder(tmp_path / "dense")).HasField("experts")
