"""`models`, `show`, `load` and `unload`."""

import json
import signal

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import common_pb2
from pomona.v1 import model_pb2 as m
from pomona.v1 import server_pb2 as s

from tests.support.scripted_server import Fail, Hold, ScriptedServer

from .conftest import Run, start


def smollm(state: m.ModelState.ValueType = m.MODEL_STATE_ACTIVE) -> m.Model:
    return m.Model(
        model="smollm2",
        state=state,
        architecture="llama",
        quantization="q4_1",
        tasks=[m.Model.TASK_GENERATE],
        memory=m.MemoryUse(footprint_bytes=98_200_000),
        last_used_time=Timestamp(seconds=1_700_000_000),
        limits=m.ModelLimits(max_context_tokens=8192, default_idle_timeout=Duration(seconds=90)),
        generation=m.GenerationCapabilities(logprobs=False),
    )


def failed() -> m.Model:
    failure = common_pb2.Failure(code=9, reason="MODEL_LOAD_FAILED", message="config.json has no hidden_size")
    return m.Model(model="broken", state=m.MODEL_STATE_FAILED, failure=failure)


def loading(phase: str, done: int) -> m.WatchModelsResponse:
    progress = m.LoadProgress(phase=phase, bytes_done=done, bytes_total=100)
    return m.WatchModelsResponse(updated=m.Model(model="smollm2", state=m.MODEL_STATE_LOADING, load_progress=progress))


def test_models_are_listed_in_columns(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[smollm(), failed()])]
    result = run("models")
    heading, first, second = result.stdout.splitlines()
    assert heading.split() == ["MODEL", "STATE", "ARCHITECTURE", "QUANTIZATION", "TASKS", "MEMORY", "LAST", "USED"]
    assert first.split() == ["smollm2", "active", "llama", "q4_1", "generate", "98.2", "MB", "2023-11-14", "22:13:20Z"]
    assert second.split() == ["broken", "failed"]
    assert result.stderr == "broken: MODEL_LOAD_FAILED config.json has no hidden_size\n"


def mixture(mode: m.ExpertsMode.ValueType, **memory: int) -> m.Model:
    options = m.LoadOptions(experts_mode=mode)
    return m.Model(
        model="mix",
        state=m.MODEL_STATE_ACTIVE,
        experts=m.RoutedExperts(layers=2, experts_per_layer=8, stored_bytes=6_000_000_000),
        runtime=m.ModelRuntime(options=options),
        memory=m.MemoryUse(**memory),
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (mixture(m.EXPERTS_MODE_UNSPECIFIED), "0 B of 6.0 GB"),
        (mixture(m.EXPERTS_MODE_SLAB), "slab, 0 B of 6.0 GB"),
        (mixture(m.EXPERTS_MODE_RESIDENT, resident_expert_bytes=6_000_000_000), "resident, 6.0 GB of 6.0 GB"),
        (mixture(m.EXPERTS_MODE_SLAB, expert_slab_bytes=800_000_000), "slab, 800.0 MB of 6.0 GB"),
        (mixture(m.EXPERTS_MODE_MAPPED, mapped_expert_bytes=5_900_000_000), "mapped, 5.9 GB of 6.0 GB"),
    ],
)
def test_experts_have_a_column_where_there_are_any(
    server: ScriptedServer, run: Run, model: m.Model, words: str
) -> None:
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[smollm(), model])]
    heading, _, row = run("models").stdout.splitlines()
    assert "EXPERTS" in heading
    assert " ".join(row.split()) == f"mix active {words}"


def test_what_reading_experts_costs_is_shown(server: ScriptedServer, run: Run) -> None:
    model = mixture(m.EXPERTS_MODE_SLAB)
    model.workers.add(instance_id="i1", pid=42)
    stats = s.ModelStats(
        expert_hit_ratio=0.874,
        expert_bytes_read_total=12_300_000,
        expert_stall_us_total=2_500_000,
        memory=m.MemoryUse(expert_slab_bytes=5),
    )
    server.scripts["GetModel"] = [m.GetModelResponse(model=model)]
    server.scripts["GetStats"] = [s.GetStatsResponse(models=[stats])]
    lines = [" ".join(line.split()) for line in run("show", "mix").stdout.splitlines()]
    assert "experts layers 2" in lines
    assert "runtime options experts mode slab" in lines
    assert lines[-1] == "experts needed 87.4% lay in memory, 12.3 MB read, 2.5 s waited"


def test_all_pages_are_read(server: ScriptedServer, run: Run) -> None:
    pages = {
        "": m.ListModelsResponse(models=[smollm()], next_page_token="2"),
        "2": m.ListModelsResponse(models=[failed()]),
    }
    server.scripts["ListModels"] = lambda request: [pages[request.page_token]]
    document = json.loads(run("models", "--json").stdout)
    assert [model["model"] for model in document["models"]] == ["smollm2", "broken"]
    assert document["models"][1]["state"] == "MODEL_STATE_FAILED"
    assert document["models"][1]["tasks"] == []


def test_state_of_a_newer_server_is_shown_as_a_number(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[m.Model.FromString(b"\x0a\x01x\x40\x63")])]
    assert run("models").stdout.splitlines()[1].split() == ["x", "99"]


def test_model_is_shown_with_units(server: ScriptedServer, run: Run) -> None:
    server.scripts["GetModel"] = [m.GetModelResponse(model=smollm())]
    shown = run("show", "smollm2").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "limits max context tokens 8192" in lines
    assert "default idle timeout 90 s" in lines
    assert "generation logprobs no" in lines
    assert "memory footprint 98.2 MB" in lines
    assert [call.method for call in server.calls] == ["GetModel"]


def test_model_says_why_it_cannot_do_something(server: ScriptedServer, run: Run) -> None:
    model = smollm()
    model.generation.unavailable.update({"tool_calls": "its template reads no tools"})
    server.scripts["GetModel"] = [m.GetModelResponse(model=model)]
    lines = [" ".join(line.split()) for line in run("show", "smollm2").stdout.splitlines()]
    assert "unavailable tool calls: its template reads no tools" in lines


def test_work_of_a_loaded_model_is_shown(server: ScriptedServer, run: Run) -> None:
    model = smollm()
    model.workers.add(instance_id="i1", pid=42)
    stats = s.ModelStats(
        running_requests=3,
        queued_requests=1,
        prefill_tokens_per_second=812.4,
        decode_tokens_per_second=64.6,
        used_cache_tokens=640,
        total_cache_tokens=4096,
        prompt_tokens_total=1000,
        cached_prompt_tokens_total=400,
        evictions_total=6,
        drafted_tokens_total=20,
        accepted_draft_tokens_total=11,
    )
    server.scripts["GetModel"] = [m.GetModelResponse(model=model)]
    server.scripts["GetStats"] = [s.GetStatsResponse(models=[stats])]
    lines = [" ".join(line.split()) for line in run("show", "smollm2").stdout.splitlines()]
    assert lines[-5:] == [
        "requests 3 running, 1 queued",
        "tokens/s 812 prompt, 65 output",
        "cache 640 of 4096 tokens in use",
        "prefix cache 400 of 1000 prompt tokens found, 6 blocks evicted",
        "speculation 11 of 20 guesses right",
    ]
    assert server.call("GetStats").request.models == ["smollm2"]


def test_a_server_that_counts_nothing_still_shows_its_model(server: ScriptedServer, run: Run) -> None:
    model = smollm()
    model.workers.add(instance_id="i1", pid=42)
    server.scripts["GetModel"] = [m.GetModelResponse(model=model)]
    result = run("show", "smollm2")
    assert (result.exit_code, "requests" in result.stdout) == (0, False)
    server.scripts["GetStats"] = [Fail(grpc.StatusCode.UNAVAILABLE, "gone")]
    assert run("show", "smollm2").exit_code == 1


def test_model_is_loaded_with_the_options_given(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm())]
    result = run("load", "smollm2", "--context-tokens", "512", "--max-batch-rows", "2", "--kv-scheme", "turbo")
    assert (result.exit_code, result.stdout) == (0, "smollm2 is active\n")
    options = m.LoadOptions(context_tokens=512, max_batch_rows=2, kv_scheme="turbo")
    assert server.call("LoadModel").request == m.LoadModelRequest(model="smollm2", options=options)


def test_a_load_says_how_long_its_model_stays_and_whether_others_go_for_it(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm())]
    assert run("load", "smollm2", "--pin", "--idle-ttl", "90", "--no-evict").exit_code == 0
    assert server.call("LoadModel").request == m.LoadModelRequest(
        model="smollm2", pinned=True, idle_ttl=Duration(seconds=90), allow_eviction=False
    )


def test_phases_of_a_load_are_told_while_it_runs(server: ScriptedServer) -> None:
    seen = Hold()
    server.scripts["WatchModels"] = [loading("reading", 10), loading("reading", 50), loading("warm-up", 100), Hold()]
    server.scripts["LoadModel"] = [seen, m.LoadModelResponse(model=smollm())]
    with start("load", "smollm2", "--server", server.address) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "smollm2: reading weights, 10 B of 100 B\n"
        assert process.stderr.readline() == "smollm2: warming up, 100 B of 100 B\n"
        seen.until.set()
        output, errors = process.communicate(timeout=10)
    assert (process.returncode, output, errors) == (0, "smollm2 is active\n", "")
    assert server.call("WatchModels").is_ended_by_client.wait(5)


def test_load_needs_no_progress_to_succeed(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm())]
    assert run("load", "smollm2").exit_code == 0


def test_load_that_fails_tells_why(server: ScriptedServer, run: Run) -> None:
    server.scripts["WatchModels"] = [loading("reading", 10), Hold()]
    server.scripts["LoadModel"] = [Fail(grpc.StatusCode.FAILED_PRECONDITION, "no hidden_size", "CHECKPOINT_REJECTED")]
    result = run("load", "smollm2")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "error: FAILED_PRECONDITION CHECKPOINT_REJECTED: no hidden_size"


def test_load_need_not_be_waited_for(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm(m.MODEL_STATE_LOADING))]
    assert run("load", "smollm2", "--no-wait").stdout == "smollm2 is loading\n"
    assert server.call("LoadModel").request.return_immediately
    assert [call.method for call in server.calls] == ["EstimateModel", "LoadModel"]


@pytest.mark.parametrize(
    ("total_bytes", "fits", "is_told"),
    [(25_000_000_000, False, True), (25_000_000_000, True, False), (18_000_000_000, False, False)],
)
def test_load_of_what_may_not_fit_is_told_in_a_line(
    server: ScriptedServer, run: Run, total_bytes: int, fits: bool, is_told: bool
) -> None:
    estimate = m.MemoryEstimate(total_bytes=total_bytes, budget_bytes=19_000_000_000)
    server.scripts["EstimateModel"] = [m.EstimateModelResponse(estimate=estimate, fits_now=fits)]
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm())]
    result = run("load", "smollm2", "--context-tokens", "512")
    assert (result.exit_code, result.stdout) == (0, "smollm2 is active\n")
    line = "warning: smollm2 may take 25.0 GB, models together 19.0 GB here;"
    assert (f"{line} pomona fit smollm2 tells what of that to lower\n" in result.stderr) is is_told
    options = m.LoadOptions(context_tokens=512)
    assert server.call("EstimateModel").request == m.EstimateModelRequest(model="smollm2", options=options)


def test_loaded_model_is_printed_for_a_program(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [m.LoadModelResponse(model=smollm())]
    result = run("load", "smollm2", "--json")
    (line,) = result.stdout.splitlines()
    assert (json.loads(line)["model"]["state"], result.stderr) == ("MODEL_STATE_ACTIVE", "")


def test_program_reads_the_progress_of_a_load_and_then_its_model(server: ScriptedServer) -> None:
    seen = Hold()
    steps = [loading("reading", 10), loading("reading", 10), loading("warm-up", 100)]
    server.scripts["WatchModels"] = [*steps, Hold()]
    server.scripts["LoadModel"] = [seen, m.LoadModelResponse(model=smollm())]
    with start("load", "smollm2", "--json", "--server", server.address) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        seen.until.set()
        rest, errors = process.communicate(timeout=10)
    assert [line["progress"]["phase"] for line in lines] == ["reading", "warm-up"]
    assert lines[0]["progress"]["bytesDone"] == 10
    assert (lines[0]["progress"]["bytesTotal"], lines[0]["progress"]["state"]) == (100, "loading")
    assert (json.loads(rest)["model"]["model"], errors) == ("smollm2", "")


def test_program_reads_why_a_load_failed_in_the_last_line(server: ScriptedServer, run: Run) -> None:
    server.scripts["LoadModel"] = [Fail(grpc.StatusCode.FAILED_PRECONDITION, "no hidden_size", "CHECKPOINT_REJECTED")]
    result = run("load", "smollm2", "--json")
    error = json.loads(result.stdout.splitlines()[-1])["error"]
    assert (result.exit_code, error["reason"]) == (1, "CHECKPOINT_REJECTED")


def test_ctrl_c_stops_waiting_and_says_that_the_load_goes_on(server: ScriptedServer) -> None:
    server.scripts["WatchModels"] = [loading("reading", 10), Hold()]
    server.scripts["LoadModel"] = [Hold()]
    with start("load", "smollm2", "--server", server.address) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("smollm2: reading weights")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == "the server goes on loading smollm2; to stop it: pomona unload smollm2\n"


def test_unload_tells_what_it_freed(server: ScriptedServer, run: Run) -> None:
    unloaded = m.UnloadModelResponse(model=smollm(m.MODEL_STATE_UNLOADED), freed_bytes=98_200_000)
    server.scripts["UnloadModel"] = [unloaded]
    assert run("unload", "smollm2", "--grace", "1.5").stdout == "smollm2 is unloaded, 98.2 MB freed\n"
    grace = Duration(seconds=1, nanos=500_000_000)
    assert server.call("UnloadModel").request == m.UnloadModelRequest(model="smollm2", grace=grace)


@pytest.mark.parametrize("option", [("--context-tokens", "0"), ("--max-batch-rows", "x"), ("--nothing",)])
def test_wrong_option_is_a_usage_error(run: Run, option: tuple[str, ...]) -> None:
    assert run("load", "smollm2", *option).exit_code == 2


def test_grace_that_is_no_time_is_wrong_usage(server: ScriptedServer, run: Run) -> None:
    result = run("unload", "smollm2", "--grace", "inf")
    assert (result.exit_code, result.stderr) == (2, "error: --grace: inf is no number of seconds from 0 on\n")
    assert server.calls == []
