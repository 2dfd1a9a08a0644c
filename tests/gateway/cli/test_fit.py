"""`fit`: what a server says, what is found on this machine without one, and the words for both."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import model_pb2 as m

from gateway.cli import fit as verb
from gateway.cli import own_worker
from gateway.cli.fit_table import least_budget, rows, verdict
from gateway.memory import MachineMemory
from tests.support.scripted_server import Fail, ScriptedServer
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import write_mlx

from .conftest import Run

MB = 1_000_000


def estimated(
    *,
    total: int = 900,
    budget: int = 1000,
    largest: int = 4096,
    options: m.LoadOptions | None = None,
    room: dict[str, Any] | None = None,
    **parts: int,
) -> m.EstimateModelResponse:
    """Return a response whose sizes are given in MB."""
    sizes = {"weights": 500, "kv": 200, "kv_row": 50, "transient": 20, "process": 80, "prefix_cache": 100, **parts}
    fields = {f"{name}_bytes": count * MB for name, count in sizes.items()}
    estimate = m.MemoryEstimate(total_bytes=total * MB, budget_bytes=budget * MB, **fields)
    fits: dict[str, Any] = {"fits_now": True, "fits_after_eviction": True} if room is None else room
    return m.EstimateModelResponse(
        estimate=estimate,
        largest_context_tokens=largest,
        options=options or m.LoadOptions(context_tokens=2048, max_batch_rows=4, kv_scheme="none"),
        device="metal",
        compute_dtype="bfloat16",
        **fits,
    )


@pytest.fixture
def told(server: ScriptedServer) -> list[m.EstimateModelResponse]:
    """Answers that the server gives."""
    answers = [estimated()]
    server.scripts["EstimateModel"] = lambda _: answers
    return answers


def test_the_parts_are_listed_in_columns(told: list[m.EstimateModelResponse], run: Run) -> None:
    result = run("fit", "smollm2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "PART MEMORY WHAT",
        "weights 500.0 MB as they lie in memory; computed in bfloat16 on metal",
        "keys and values 200.0 MB 4 rows of 2,048 tokens, 50.0 MB each",
        "earlier prompts 100.0 MB keys and values kept for later ones, at most",
        "largest step 20.0 MB what it computes on its way",
        "process 80.0 MB libraries and tokenizer",
        "total 900.0 MB of 1.0 GB that models may take here",
        "",
        "It fits now.",
        "The largest context that fits with 4 rows is 4,096 tokens.",
    ]


def test_options_go_with_the_question(told: list[m.EstimateModelResponse], server: ScriptedServer, run: Run) -> None:
    run("fit", "org/model", "--context", "99", "--rows", "3", "--kv-scheme", "turbo")
    options = m.LoadOptions(context_tokens=99, max_batch_rows=3, kv_scheme="turbo")
    assert server.call("EstimateModel").request == m.EstimateModelRequest(model="org/model", options=options)


def test_what_is_left_out_is_left_to_the_server(
    told: list[m.EstimateModelResponse], server: ScriptedServer, run: Run
) -> None:
    run("fit", "smollm2")
    options = server.call("EstimateModel").request.options
    assert options == m.LoadOptions()


def test_a_program_gets_the_message(told: list[m.EstimateModelResponse], run: Run) -> None:
    document = json.loads(run("fit", "smollm2", "--json").stdout)
    assert document["estimate"]["totalBytes"] == str(900 * MB)
    assert (document["fitsNow"], document["largestContextTokens"], document["wouldEvict"]) == (True, 4096, [])


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_does_not_fit_is_told_by_the_exit_code(
    told: list[m.EstimateModelResponse], run: Run, form: tuple[str, ...]
) -> None:
    told[:] = [estimated(total=1500, room={})]
    result = run("fit", "smollm2", *form)
    assert (result.exit_code, result.stderr, bool(result.stdout)) == (1, "", True)


def test_what_fits_once_others_are_gone_is_a_success(told: list[m.EstimateModelResponse], run: Run) -> None:
    told[:] = [estimated(room={"fits_after_eviction": True, "would_evict": ["a", "b"]})]
    result = run("fit", "smollm2")
    assert result.exit_code == 0
    assert "It fits once idle models are unloaded: a, b." in result.stdout


ONE_ROW = m.LoadOptions(context_tokens=2048, max_batch_rows=1)
OVER = "It does not fit: it takes 500.0 MB more than models may take here."
TOO_HEAVY = "The weights alone are too much for it; a smaller checkpoint, or one in fewer bits, may fit."


@pytest.mark.parametrize(
    ("response", "lines"),
    [
        (
            estimated(room={}),
            [
                "It fits this machine, but not beside what is running now.",
                "The largest context that fits with 4 rows is 4,096 tokens.",
            ],
        ),
        (estimated(largest=0, options=m.LoadOptions(max_batch_rows=2)), ["It fits now."]),
        (
            estimated(total=1500, largest=700, room={}),
            [OVER, "With 4 rows a context of 700 tokens fits: --context 700"],
        ),
        (estimated(total=1500, largest=0, room={}), [OVER, "Fewer rows take less: --rows 1"]),
        (
            estimated(total=1500, largest=0, room={}, options=ONE_ROW),
            [OVER, "Not even the shortest context fits."],
        ),
        (estimated(total=1500, largest=0, room={}, weights=990), [OVER, TOO_HEAVY]),
        (estimated(total=1500, largest=0, room={}, weights=100, experts=900), [OVER, TOO_HEAVY]),
    ],
)
def test_the_verdict_is_in_plain_words(response: m.EstimateModelResponse, lines: list[str]) -> None:
    assert list(verdict(response)) == lines


@pytest.mark.parametrize(
    ("mode", "held", "row"),
    [
        (m.EXPERTS_MODE_RESIDENT, 300, ("300.0 MB", "all of them; --experts slab has fewer in memory")),
        (
            m.EXPERTS_MODE_SLAB,
            90,
            ("90.0 MB", "slabs with room for 1,200 of 4,000 experts, 300.0 MB; the others are read when needed"),
        ),
        (
            m.EXPERTS_MODE_MAPPED,
            0,
            ("0 B", "300.0 MB are mapped from the pack; here what of them has to be converted"),
        ),
    ],
)
def test_experts_have_a_row(mode: m.ExpertsMode.ValueType, held: int, row: tuple[str, str]) -> None:
    response = estimated(experts=held, all_experts=300, options=m.LoadOptions(context_tokens=1, experts_mode=mode))
    response.estimate.total_experts, response.estimate.slab_experts = 4000, 1200
    told = {name: rest for name, *rest in rows(response)}
    assert (told["experts"], "weights" in told, "other weights" in told) == (list(row), False, True)


def test_slabs_with_room_for_all_experts_are_told_apart() -> None:
    options = m.LoadOptions(context_tokens=1, experts_mode=m.EXPERTS_MODE_SLAB)
    response = estimated(experts=305, all_experts=300, options=options)
    response.estimate.total_experts = response.estimate.slab_experts = 8
    words = "slabs with room for all 8 experts, and what these are read through; --experts resident is faster"
    assert {name: rest for name, *rest in rows(response)}["experts"] == ["305.0 MB", words]


def test_options_that_fit_are_told_as_they_are_given() -> None:
    response = estimated(total=1500, largest=700, room={})
    response.fitting_options.add(experts_mode=m.EXPERTS_MODE_MAPPED)
    response.fitting_options.add(experts_mode=m.EXPERTS_MODE_SLAB, expert_budget_bytes=4_449_999_999)
    response.fitting_options.add(max_batch_rows=3)
    response.fitting_options.add(context_tokens=700)
    assert list(verdict(response)) == [
        OVER,
        "It fits with:",
        "  --experts mapped",
        "  --experts slab --expert-budget 4.44G",
        "  --max-batch-rows 3",
        "  --context-tokens 700",
    ]


def test_a_model_without_experts_has_no_row_for_them() -> None:
    assert "experts" not in {name for name, *_ in rows(estimated())}
    assert list(least_budget(estimated())) == []


def test_the_smallest_budget_is_told_as_it_is_typed(told: list[m.EstimateModelResponse], run: Run) -> None:
    told[:] = [estimated(experts=300, all_experts=300, least_expert_budget=70)]
    line = "The smallest budget for its experts is --expert-budget 70M."
    assert run("fit", "smollm2").stdout.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("65536", 65536), ("800M", 800 * MB), ("1.5G", 1500 * MB), ("2GiB", 2 << 30), ("1TB", 10**12)],
)
def test_a_budget_is_given_in_bytes_or_units(
    told: list[m.EstimateModelResponse], server: ScriptedServer, run: Run, text: str, num_bytes: int
) -> None:
    run("fit", "smollm2", "--experts", "slab", "--expert-budget", text)
    options = m.LoadOptions(experts_mode=m.EXPERTS_MODE_SLAB, expert_budget_bytes=num_bytes)
    assert server.call("EstimateModel").request.options == options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--experts", "some"), "--experts must be one of auto, resident, mapped, slab"),
        (("--expert-budget", "much"), "--expert-budget: much is no size"),
        (("--expert-budget", "1k"), "--expert-budget: 1k is not within 64KiB to 1024TiB"),
        (("--experts", "mapped", "--expert-budget", "1G"), "--expert-budget bounds slabs, and the experts are mapped"),
    ],
)
def test_experts_are_refused_before_anything_is_asked(run: Run, options: tuple[str, ...], words: str) -> None:
    result = run("fit", "smollm2", *options)
    assert (result.exit_code, result.stdout, words in result.stderr) == (2, "", True)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (estimated(options=ONE_ROW, kv=50), "1 row of 2,048 tokens, 50.0 MB each"),
        (
            estimated(kv=120),
            "4 rows of 2,048 tokens, 50.0 MB each;"
            " kv_bytes has room for 2 at that length at once, or for more that are shorter",
        ),
        (
            estimated(options=m.LoadOptions(context_tokens=64, max_batch_rows=4, kv_scheme="8:g32")),
            "4 rows of 64 tokens, 50.0 MB each, kept as 8:g32",
        ),
        (estimated(options=m.LoadOptions(max_batch_rows=2)), "2 windows of 30 s at once, 50.0 MB each"),
    ],
)
def test_keys_and_values_are_told_with_their_rows(response: m.EstimateModelResponse, words: str) -> None:
    assert [text for name, _, text in rows(response) if name in ("keys and values", "speech and text")] == [words]


def test_a_failure_of_the_server_is_told_as_any(server: ScriptedServer, run: Run) -> None:
    server.scripts["EstimateModel"] = [Fail(grpc.StatusCode.NOT_FOUND, "There is no model named x.", "MODEL_NOT_FOUND")]
    result = run("fit", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: NOT_FOUND MODEL_NOT_FOUND: There is no model named x.")


def test_a_folder_that_was_meant_is_pointed_out(
    server: ScriptedServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.scripts["EstimateModel"] = [
        Fail(grpc.StatusCode.NOT_FOUND, "There is no model named tiny.", "MODEL_NOT_FOUND")
    ]
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("fit", "tiny").stderr.startswith("tiny is here too; without a server: pomona fit ./tiny\nerror: ")


@pytest.fixture
def here(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command where there is no server, on a machine with 4 GB."""
    monkeypatch.setattr(verb, "machine_memory", lambda: MachineMemory(4_000 * MB, 3_000 * MB))
    return lambda *arguments, **options: run(*arguments, address=f"unix:{tmp_path}/none.sock", **options)


def test_a_path_needs_no_server(here: Run, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny")
    result = here("fit", str(folder), "--context", "128", "--rows", "2", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["fitsNow"], document["largestContextTokens"]) == (0, True, 4096)
    options = document["options"]
    assert (options["contextTokens"], options["maxBatchRows"], options["kvScheme"]) == (128, 2, "none")
    assert document["estimate"]["budgetBytes"] == str(3_000 * MB)


def test_speech_needs_no_server_either(here: Run, tmp_path: Path) -> None:
    folder = write_mlx(tmp_path / "whisper")
    result = here("fit", str(folder), "--rows", "2")
    assert result.exit_code == 0
    assert "2 windows of 30 s at once" in result.stdout
    refused = here("fit", str(folder), "--kv-scheme", "8", "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.exit_code, error["code"], error["reason"]) == (1, "INVALID_ARGUMENT", "UNSUPPORTED_OPTION")


def test_a_machine_without_the_memory_is_told(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "machine_memory", lambda: MachineMemory(80 * MB))
    result = here("fit", str(write_llama(tmp_path / "tiny")))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2].startswith("It does not fit: it takes")


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--context", "5000"), "--context: 5000 is over the 4096 tokens of the checkpoint", 2),
        (("--kv-scheme", "3"), "--kv-scheme must be none, 8, 4, config,", 2),
        (("--kv-scheme", "turbo"), "MODEL_LOAD_FAILED", 1),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(
    here: Run, tmp_path: Path, arguments: tuple[str, ...], words: str, code: int
) -> None:
    result = here("fit", str(write_llama(tmp_path / "tiny")), *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        *((name, False) for name in ("smollm2", "org/model", "Qwen3-0.6B", "a.b")),
        *((name, True) for name in ("/models/a", "./a", "../a", "~/a", ".", "a.gguf", "org/a.GGUF", "a/b/c", "a b")),
    ],
)
def test_what_cannot_be_a_name_is_a_path(text: str, is_path: bool) -> None:
    assert verb.is_path(text) == is_path


def test_a_path_without_a_checkpoint_is_told_as_a_server_would(here: Run) -> None:
    result = here("fit", "~/nothing", "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"], error["reason"]) == (1, "FAILED_PRECONDITION", "CHECKPOINT_REJECTED")
    assert (error["metadata"]["file"], "/" in error["message"]) == ("nothing", False)


def test_an_install_without_a_worker_says_how_to_get_one(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_worker, "WORKER_PACKAGE", "not_there_at_all")
    result = here("fit", "./model")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'pomona[worker]'" in result.stderr
