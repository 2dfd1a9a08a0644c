"""The one-shot `fit`: what it says of a checkpoint, that it needs no MLX, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pomona.v1 import model_pb2

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointError
from models.checkpoint.kv_scheme import KVScheme
from models.registry import load
from models.step import NumericPath
from tests.models.variants import VARIANTS, WINDOWED
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import SIZES, write_mlx
from worker import fit as fits
from worker.errors import ModelLoadFailed, UnsupportedOption
from worker.fit import estimate, main
from worker.loaded_text import LoadedText
from worker.prefix_settings import PrefixSettings
from worker.settings import ADAPTERS_BYTES, WorkerSettings
from worker.speech.loading import make_speech_workload
from worker.text_settings import TextSettings

WIDE: dict[str, Any] = {**VARIANTS["4-bit"], "config": {"head_dim": 64}}
GIB = 1 << 30
# For speech: of five rows of the tiny model.
ROOM = {
    "kv_bytes": 5 * 2 * SIZES["n_text_layer"] * (SIZES["n_audio_ctx"] + SIZES["n_text_ctx"]) * SIZES["n_text_state"] * 4
}


def part(response: model_pb2.EstimateModelResponse, name: str) -> int:
    return getattr(response.estimate, f"{name}_bytes")


def test_the_parts_add_up(tmp_path: Path) -> None:
    response = estimate(write_llama(tmp_path), {})
    parts = ("weights", "experts", "kv", "transient", "adapters", "prefix_cache", "process")
    assert part(response, "total") == sum(part(response, name) for name in parts)
    assert part(response, "prefix_cache") == 512 << 20
    assert part(response, "process") > 10_000_000
    assert (part(response, "experts"), part(response, "adapters"), part(response, "budget")) == (0, 0, 0)
    assert (response.fits_now, response.fits_after_eviction, response.disk_bytes_needed) == (False, False, 0)


def test_adapters_count_where_there_is_a_folder_of_them(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    plain = part(estimate(folder, {"adapters_bytes": 1000}), "total")
    some = estimate(folder, {"adapters_folder": "/a", "adapters_bytes": 1000})
    assert (part(some, "adapters"), part(some, "total")) == (1000, plain + 1000)
    assert part(estimate(folder, {"adapters_folder": "/a"}), "adapters") == ADAPTERS_BYTES


def test_what_is_left_out_is_as_a_worker_has_it(tmp_path: Path) -> None:
    response = estimate(write_llama(tmp_path), {})
    assert response.options == model_pb2.LoadOptions(context_tokens=4096, max_batch_rows=16, kv_scheme="none")
    shared = WorkerSettings(instance_id="i", model="m", checkpoint="/c", socket="/s", secret="x")
    bounds = TextSettings()
    assert (bounds.max_batch_rows, bounds.prefill_chunk_tokens) == (shared.max_batch_rows, shared.prefill_chunk_tokens)
    assert bounds.prefixes.max_bytes == shared.prefix_cache_bytes


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ({}, {}),
        ({}, {"context_tokens": 300, "max_batch_rows": 3}),
        ({}, {"context_tokens": 300, "max_batch_rows": 3, "kv_bytes": 300_000}),
        (WIDE, {"kv_scheme": "8:s64", "context_tokens": 500}),
        (WIDE, {"kv_scheme": "turbo", "max_batch_rows": 1}),
        (WINDOWED["window"], {"context_tokens": 1000, "max_batch_rows": 2}),
        (WINDOWED["window"], {"context_tokens": 1000, "max_batch_rows": 4, "kv_bytes": 1_000_000}),
        ({}, {"cpu_kernels": False}),
        ({}, {"path": "reference"}),
    ],
)
def test_it_takes_what_a_worker_that_loads_it_makes_room_for(
    tmp_path: Path, variant: dict[str, Any], settings: dict[str, Any]
) -> None:
    folder = write_llama(tmp_path, **variant)
    response = estimate(folder, settings)
    path = NumericPath(settings.get("path", "fast"))
    scheme = KVScheme.from_text(settings.get("kv_scheme", "none"))
    model = load(
        open_checkpoint(folder), path, lambda _: None, cpu_kernels=settings.get("cpu_kernels", True), kv_scheme=scheme
    )
    bounds = TextSettings(
        max_batch_rows=settings.get("max_batch_rows", 16),
        max_context_tokens=settings.get("context_tokens"),
        kv_bytes=settings.get("kv_bytes"),
        prefixes=PrefixSettings(max_bytes=0),
    )
    loaded = LoadedText.of(model, bounds)
    assert part(response, "weights") == model.weights_bytes
    assert part(response, "kv") == model.kv_sizes.rows_bytes(loaded.kv_tokens, bounds.max_batch_rows)
    assert part(response, "kv_row") == model.sequence_bytes(loaded.max_context_tokens)
    assert part(response, "kv_token") == model.kv_sizes.growth_bytes
    assert (response.options.context_tokens, response.compute_dtype) == (loaded.max_context_tokens, model.compute_dtype)
    assert response.device == model.device
    assert part(response, "prefix_cache") == (0 if path is NumericPath.REFERENCE else 512 << 20)


def test_rows_share_what_kv_bytes_has_room_for(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    row = part(estimate(folder, {"context_tokens": 1000, "max_batch_rows": 1}), "kv")
    shared = estimate(folder, {"context_tokens": 1000, "max_batch_rows": 8, "kv_bytes": 3 * row + 1})
    assert (part(shared, "kv"), part(shared, "kv_row")) == (3 * row, row)


def test_the_largest_context_is_the_last_that_fits(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    settings = {"max_batch_rows": 4, "prefix_cache_bytes": 0}

    def total(context_tokens: int) -> int:
        return part(estimate(folder, {**settings, "context_tokens": context_tokens}), "total")

    for most in (1, 33, 1000, 4095):
        budget = (total(most) + total(most + 1)) // 2
        assert estimate(folder, settings, budget).largest_context_tokens == most
    assert estimate(folder, settings, total(4096)).largest_context_tokens == 4096
    assert estimate(folder, settings, total(1) - 1).largest_context_tokens == 0
    assert estimate(folder, settings).largest_context_tokens == 4096


def test_a_context_that_kv_bytes_has_no_room_for_does_not_fit(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    row = part(estimate(folder, {"max_batch_rows": 1, "context_tokens": 500}), "kv_row")
    settings = {"context_tokens": 100, "kv_bytes": row}
    assert estimate(folder, settings, 100 * GIB).largest_context_tokens == 500


def test_a_checkpoint_that_bounds_no_context_is_not_searched_for_ever(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, config={"max_position_embeddings": None})
    response = estimate(folder, {"kv_bytes": 2 << 40}, 1 << 60)
    assert (response.options.context_tokens, response.largest_context_tokens) == (2048, fits.MAX_CONTEXT_TOKENS)


def test_half_the_bits_take_less(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, **WIDE)
    sizes = [part(estimate(folder, {"kv_scheme": scheme}), "kv_token") for scheme in ("none", "8", "4", "turbo:k2v2")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_a_model_of_vectors_keeps_nothing_for_later_inputs(tmp_path: Path, task: str) -> None:
    folder = write_llama(tmp_path)
    text, vectors = estimate(folder, {}), estimate(folder, {"task": task})
    head = 288 * 64 * 4
    assert part(text, "weights") - part(vectors, "weights") == (head if task == "embed" else 0)
    assert part(vectors, "prefix_cache") == 0
    assert part(vectors, "kv") == part(text, "kv") + 4 * 512 * part(text, "kv_token")


@pytest.mark.parametrize(
    ("settings", "num_rows"), [({}, 16), ({"max_batch_rows": 3}, 3), ({"kv_bytes": 1}, 1), (ROOM, 5)]
)
def test_speech_takes_what_a_worker_that_loads_it_makes_room_for(
    tmp_path: Path, settings: dict[str, Any], num_rows: int
) -> None:
    folder = write_mlx(tmp_path)
    response = estimate(folder, settings)
    given = WorkerSettings(instance_id="i", model="m", checkpoint=str(folder), socket="/s", secret="x", **settings)
    workload = make_speech_workload(given)
    loaded = workload.load(lambda _: None)
    assert workload.max_rows == response.options.max_batch_rows == num_rows
    assert (part(response, "kv"), part(response, "kv_row")) == (num_rows * loaded.row_bytes, loaded.row_bytes)


def test_speech_takes_a_window_for_each_row(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path)
    one, five = (estimate(folder, {"max_batch_rows": rows}) for rows in (1, 5))
    window = 2 * SIZES["n_text_layer"] * (SIZES["n_audio_ctx"] + SIZES["n_text_ctx"]) * SIZES["n_text_state"] * 4
    assert (part(one, "kv"), part(five, "kv"), part(five, "kv_row"), part(five, "kv_token")) == (
        window,
        5 * window,
        window,
        0,
    )
    assert (one.largest_context_tokens, one.options) == (0, model_pb2.LoadOptions(max_batch_rows=1))


def test_windows_of_speech_share_what_kv_bytes_has_room_for(tmp_path: Path) -> None:
    folder = write_mlx(tmp_path)
    window = part(estimate(folder, {}), "kv_row")
    response = estimate(folder, {"kv_bytes": 3 * window + 1})
    assert (part(response, "kv"), response.options.max_batch_rows) == (3 * window, 3)
    assert estimate(folder, {"kv_bytes": 1}).options.max_batch_rows == 1


@pytest.mark.parametrize(("name", "value"), [("context_tokens", 100), ("kv_scheme", "8")])
def test_speech_refuses_what_it_does_not_have(tmp_path: Path, name: str, value: Any) -> None:
    folder = write_mlx(tmp_path)
    with pytest.raises(UnsupportedOption) as caught:
        estimate(folder, {name: value})
    assert caught.value.field == f"options.{name}"
    assert estimate(folder, {"context_tokens": SIZES["n_text_ctx"], "kv_scheme": "none"}).estimate.kv_bytes


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"kv_scheme": "turbo"}, "kv_scheme"),  # the heads are too narrow
        ({"kv_scheme": "9"}, "kv_scheme"),
        ({"kv_bytes": 1000}, "kv_bytes"),
    ],
)
def test_what_would_not_load_is_refused_by_the_option(tmp_path: Path, settings: dict[str, Any], option: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        estimate(write_llama(tmp_path), settings)
    assert caught.value.metadata["option"] == option


def test_an_architecture_that_nothing_here_computes_is_rejected(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, config={"model_type": "glm4_moe"})
    for allowed, words in ((False, "is not one of"), (True, "is computed by mlx-lm")):
        with pytest.raises(CheckpointError, match=words) as caught:
            estimate(folder, {"allow_mlx_lm": allowed})
        assert (caught.value.reason, caught.value.key) == ("CHECKPOINT_REJECTED", "model_type")


def test_prints_a_message_that_the_contract_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_llama(tmp_path)
    assert main([str(folder), '{"max_batch_rows": 2, "budget_bytes": 1000000000}']) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    expected = estimate(folder, {"max_batch_rows": 2}, 1_000_000_000)
    assert json_format.Parse(printed, model_pb2.EstimateModelResponse()) == expected


@pytest.mark.parametrize(
    ("path", "settings", "failure"),
    [
        (
            "nothing",
            {},
            {"reason": "CHECKPOINT_REJECTED", "message": "nothing: is not there", "metadata": {"file": "nothing"}},
        ),
        (
            "whisper",
            {"kv_scheme": "8"},
            {
                "reason": "UNSUPPORTED_OPTION",
                "message": "a speech model hears windows of one length, in plain numbers",
                "metadata": {"field": "options.kv_scheme"},
            },
        ),
        (
            "llama",
            {"kv_bytes": 9, "context_tokens": 2},
            {
                "reason": "MODEL_LOAD_FAILED",
                "message": "kv_bytes is 9, and one context of 2 tokens takes 1024",
                "metadata": {"option": "kv_bytes"},
            },
        ),
    ],
)
def test_prints_why_it_refuses_without_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, settings: dict[str, Any], failure: dict[str, Any]
) -> None:
    write_mlx(tmp_path / "whisper")
    write_llama(tmp_path / "llama")
    assert main([str(tmp_path / path), json.dumps(settings)]) == 3
    assert json.loads(capsys.readouterr().out) == failure


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "[]",
        "{",
        '{"socket": "/s"}',
        '{"max_batch_rows": 0}',
        '{"budget_bytes": 0}',
        '{"budget_bytes": "1"}',
        '{"budget_bytes": true}',
    ],
)
def test_settings_that_are_none_are_wrong_use(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere", settings]) == 2
    assert capsys.readouterr().err.startswith("worker: ")


@pytest.mark.parametrize("arguments", [[], ["a", "{}", "b"]])
def test_wants_a_path_and_perhaps_settings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: python -P -m worker fit PATH [SETTINGS]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama", "whisper"])
def test_imports_no_mlx(tmp_path: Path, kind: str) -> None:
    folder = write_llama(tmp_path) if kind == "llama" else write_mlx(tmp_path)
    script = "import sys; from worker.fit import main; main(sys.argv[1:]); print({'mlx', 'grpc'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-P", "-c", script, str(folder)], capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout.splitlines()[-1] == "set()"
