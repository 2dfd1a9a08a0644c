"""From settings to a loaded model: what could not serve is refused, what runs is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointError, CheckpointRejected
from models.layers.paged_cache import PagedCache
from models.registry import LoadedModel
from native import kernels
from tests.support.tiny_checkpoints import llama_config, write_folder, write_llama_gguf
from tests.support.tiny_models import write_llama
from worker.errors import ModelLoadFailed
from worker.failures import failure_of
from worker.loading import loaded_message, make_workload, served_model
from worker.model_loading import check_serves, text_settings
from worker.settings import WorkerSettings
from worker.text_settings import TextSettings
from worker.validation import MAX_SEQUENCES

VOCAB_SIZE = llama_config()["vocab_size"]
HEAD_DIM = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny", config={"head_dim": HEAD_DIM})


def told(checkpoint: Path, **changes: Any) -> WorkerSettings:
    needed = {"instance_id": "0a", "model": "tiny", "socket": "/tmp/w.sock", "secret": "x"}
    return WorkerSettings(**needed, checkpoint=str(checkpoint), **changes)


def load(settings: WorkerSettings) -> LoadedModel:
    workload = make_workload(settings, lambda _: None)
    loaded = workload.load(lambda _: None)
    workload.close()
    return loaded


def test_settings_that_say_nothing_leave_the_workload_its_defaults(checkpoint: Path) -> None:
    assert text_settings(told(checkpoint)) == TextSettings()


def test_bounds_reach_the_workload(checkpoint: Path, tmp_path: Path) -> None:
    settings = told(
        checkpoint,
        max_batch_rows=3,
        max_queue_requests=5,
        prefill_chunk_tokens=64,
        context_tokens=100,
        kv_bytes=1 << 20,
        prefix_cache_bytes=7,
        prefix_cache_folder=str(tmp_path),
        prefix_cache_folder_bytes=9,
    )
    bounds = text_settings(settings)
    assert (bounds.max_batch_rows, bounds.max_queue_requests, bounds.prefill_chunk_tokens) == (3, 5, 64)
    assert (bounds.max_context_tokens, bounds.kv_bytes) == (100, 1 << 20)
    prefixes = bounds.prefixes
    assert (prefixes.max_bytes, prefixes.folder, prefixes.folder_max_bytes) == (7, tmp_path, 9)


@pytest.mark.parametrize("scheme", ["none", "8", "4:g32:s32", "turbo:k8v3", "turbo:k4v2:s32", "config"])
def test_keys_and_values_are_kept_and_shown_as_the_settings_say(tmp_path: Path, scheme: str) -> None:
    checkpoint = write_llama(tmp_path / "tiny", config={"head_dim": HEAD_DIM})
    (checkpoint / "kv_config.json").write_text(json.dumps([{"layer_idx": 0, "bits": 4, "group_size": 64}]))
    settings = told(checkpoint, kv_scheme=scheme, context_tokens=64, max_batch_rows=2)
    loaded = load(settings)
    message = loaded_message(loaded, 64, settings)
    assert message.runtime.options.kv_scheme == scheme
    assert message.runtime.speculation == "ngram"
    if kernels.is_available():
        assert isinstance(loaded.make_cache(1, 64), PagedCache) is (scheme == "none")


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        (
            "6",
            "kv_scheme: must be none, 8, 4, config, turbo or turbo:k<bits>v<bits>, "
            'then :g<size> (8 and 4) and :s<start> (got "6")',
        ),
        ("turbo:8", 'kv_scheme: the turbo spec must look like "turbo:k<bits>v<bits>" (got "turbo:8")'),
        ("turbo:k3v3", "kv_scheme: turbo key bits must be one of 2, 4, 5, 8 (got 3)"),
        ("turbo:k8v7", "kv_scheme: turbo value bits must be one of 2, 3, 4, 5, 8 (got 7)"),
        ("8:s33", "kv_scheme: the start must be a multiple of 32 tokens (got 33)"),
    ],
)
def test_a_scheme_that_is_not_offered_ends_the_load_and_names_its_option(
    checkpoint: Path, scheme: str, problem: str
) -> None:
    with pytest.raises(ModelLoadFailed) as raised:
        load(told(checkpoint, kv_scheme=scheme))
    failure = failure_of(raised.value, model="tiny")
    assert (failure.reason, failure.message) == ("MODEL_LOAD_FAILED", problem)
    assert failure.metadata == {"model": "tiny", "option": "kv_scheme"}


def test_a_model_whose_heads_cannot_be_packed_so_is_not_loaded(tmp_path: Path) -> None:
    narrow = write_llama(tmp_path / "narrow")
    with pytest.raises(ModelLoadFailed, match="kv_scheme: layer 0 has heads of 16; turbo packs 64"):
        load(told(narrow, kv_scheme="turbo"))


def test_a_scheme_from_the_checkpoint_needs_its_file_and_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"kv_config\.json"):
        load(told(checkpoint, kv_scheme="config"))
    with pytest.raises(ModelLoadFailed, match=r"kv_scheme: config reads kv_config\.json of a checkpoint.s folder"):
        load(told(write_llama_gguf(tmp_path / "tiny.gguf"), kv_scheme="config"))


@pytest.mark.parametrize(
    ("changes", "has_prefix_cache"),
    [({}, True), ({"prefix_cache_bytes": 0}, False), ({"path": "reference"}, False)],
)
def test_the_model_says_whether_later_prompts_find_what_earlier_ones_left(
    checkpoint: Path, changes: dict[str, Any], has_prefix_cache: bool
) -> None:
    settings = told(checkpoint, context_tokens=64, **changes)
    message = loaded_message(load(settings), 64, settings)
    assert message.generation.prefix_cache is has_prefix_cache
    assert (message.limits.max_batch_rows, message.runtime.options.max_batch_rows) == (16, 16)


@pytest.mark.parametrize(("rows", "queue", "most"), [(2, 3, 5), (1, 1, 2), (16, 64, MAX_SEQUENCES)])
def test_a_request_has_no_more_sequences_than_may_run_and_wait(
    checkpoint: Path, rows: int, queue: int, most: int
) -> None:
    settings = told(checkpoint, context_tokens=64, max_batch_rows=rows, max_queue_requests=queue)
    served = served_model(load(settings), 64, settings, None)
    assert served.facts.max_sequences == most


def test_defaults_of_the_settings_are_told_and_hold(checkpoint: Path) -> None:
    settings = told(
        checkpoint, context_tokens=64, defaults={"top_k": 3, "penalty_window": 9, "seed": 7, "max_tokens": 5}
    )
    loaded = load(settings)
    message = loaded_message(loaded, 64, settings)
    assert (message.default_sampling.top_k, message.default_sampling.seed) == (3, 7)
    assert message.default_stopping.max_tokens == 5
    facts = served_model(loaded, 64, settings, None).facts
    assert (facts.sampling.top_k, facts.sampling.penalty_window, facts.seed, facts.max_tokens) == (3, 9, 7, 5)


def folder(path: Path, **config: object) -> Path:
    return write_folder(path / "tiny", config=llama_config(**config))


def test_a_tokenizer_may_fill_the_vocabulary_and_not_exceed_it(tmp_path: Path) -> None:
    check_serves(open_checkpoint(folder(tmp_path / "full")), None)
    check_serves(open_checkpoint(write_llama_gguf(tmp_path / "full.gguf")), None)
    with pytest.raises(CheckpointRejected, match=f"tokenizer.json: has token {VOCAB_SIZE - 1}"):
        check_serves(open_checkpoint(folder(tmp_path / "small", vocab_size=VOCAB_SIZE - 1)), None)


@pytest.mark.parametrize("trained", [1, 2])
def test_a_context_has_room_for_a_prompt_and_an_answer(tmp_path: Path, trained: int) -> None:
    checkpoint = open_checkpoint(folder(tmp_path, max_position_embeddings=trained))
    if trained == 1:
        with pytest.raises(CheckpointRejected, match="max_position_embeddings"):
            check_serves(checkpoint, None)
    else:
        check_serves(checkpoint, 2)
        with pytest.raises(ModelLoadFailed, match="context_tokens is 1"):
            check_serves(checkpoint, 1)
