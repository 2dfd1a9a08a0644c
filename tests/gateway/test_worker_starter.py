import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from pomona.v1 import model_pb2

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.desired_adapters import DesiredAdapter, DesiredAdapters
from gateway.lifecycle import Event, Ready
from gateway.memory import machine_memory
from gateway.model_status import LoadOptions
from gateway.sections.grpc import GrpcSettings
from gateway.sections.worker import WorkerDefaults
from gateway.settings import Settings
from gateway.sockets import SocketFolder
from gateway.worker_starter import WorkerStarter, told_limits, worker_environment, worker_settings
from tests.support.scripted import events_in, fake_worker_command, write_script
from tests.support.waiting import eventually


async def describe(_: CatalogueModel) -> model_pb2.Model:
    return model_pb2.Model()


async def told(
    folder: Path,
    options: LoadOptions,
    worker: WorkerDefaults | None = None,
    desired: DesiredAdapters | None = None,
    **model: Any,
) -> dict[str, Any]:
    """Start a worker with these options and return the settings that it was given."""
    told_all = Settings(worker=worker or WorkerDefaults())
    events: list[Event] = []
    sockets = SocketFolder()
    catalogue = Catalogue([CatalogueModel("m", write_script(folder), **model)], describe)
    log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    starter = WorkerStarter(
        catalogue, lambda: told_all, sockets, fake_worker_command(), log, desired=desired or DesiredAdapters()
    )
    supervisor = starter.start("m", options, events.append)
    await eventually(lambda: any(isinstance(event, Ready) for event in events))
    supervisor.stop()
    await supervisor.close(10.0)
    sockets.close()
    (started,) = events_in(folder, "started")
    return started["settings"]


async def test_a_worker_is_told_what_the_settings_say(tmp_path: Path) -> None:
    settings = await told(tmp_path, LoadOptions(), context_tokens=2048, max_batch_rows=3, path="reference")
    assert settings["checkpoint"] == str(tmp_path / "script.json")
    assert (settings["context_tokens"], settings["max_batch_rows"], settings["path"]) == (2048, 3, "reference")
    assert (settings["prefill_chunk_tokens"], settings["outbox_bytes"]) == (512, 256 * 1024)
    assert (settings["max_request_bytes"], settings["log_level"]) == (16 * 1024 * 1024, "info")
    assert (settings["cpu_kernels"], settings["allow_mlx_lm"]) == (True, False)
    assert (settings["kv_scheme"], settings["kv_bytes"]) == ("none", None)
    assert (settings["reasoning_marks"], settings["tool_dialect"], settings["task"]) == (None, None, None)
    assert (settings["prefix_cache_bytes"], settings["prefix_cache_folder_bytes"]) == (512 << 20, 8 << 30)
    assert settings["prefix_cache_folder"] is None
    assert (settings["experts"], settings["expert_budget"], settings["expert_trace"]) == ("auto", None, None)
    assert settings["budget_bytes"] == machine_memory().budget_bytes


async def test_options_of_a_load_win_over_the_settings(tmp_path: Path) -> None:
    options = LoadOptions(512, 1, "turbo")
    settings = await told(tmp_path, options, context_tokens=2048, max_batch_rows=3, kv_scheme="8", kv_bytes=1 << 20)
    assert (settings["context_tokens"], settings["max_batch_rows"]) == (512, 1)
    assert (settings["kv_scheme"], settings["kv_bytes"]) == ("turbo", 1 << 20)


async def test_a_worker_is_told_which_adapters_to_begin_with(tmp_path: Path) -> None:
    desired = DesiredAdapters()
    desired.load("m", DesiredAdapter("late", "org/source", revision="r"))
    desired.unload("m", "gone")
    settings = await told(
        tmp_path,
        LoadOptions(),
        desired=desired,
        adapters_folder=tmp_path / "adapters",
        adapters_bytes=1 << 21,
        lazy_adapters=True,
        adapters=(DesiredAdapter("gone"), DesiredAdapter("first", pinned=True)),
    )
    assert settings["adapters_folder"] == str(tmp_path / "adapters")
    assert (settings["adapters_bytes"], settings["lazy_adapters"]) == (1 << 21, True)
    assert settings["adapters"] == [
        {"adapter": "first", "pinned": True},
        {"adapter": "late", "source": "org/source", "pinned": False, "revision": "r"},
    ]


async def test_more_adapters_than_a_worker_can_be_told_of_do_not_keep_it_from_starting(tmp_path: Path) -> None:
    desired = DesiredAdapters()
    for index in range(200):
        desired.load("m", DesiredAdapter(f"organisation/adapter-{index}", pinned=index == 3, revision="0" * 64))
    settings = await told(tmp_path, LoadOptions(), desired=desired, adapters_folder=tmp_path)
    names = [one["adapter"] for one in settings["adapters"]]
    assert (names[0], names[-1]) == ("organisation/adapter-3", "organisation/adapter-199")
    assert 40 < len(names) < 80


@pytest.mark.parametrize(
    ("options", "told_of_experts"),
    [
        (LoadOptions(), ("slab", 1 << 30)),
        (LoadOptions(expert_budget=1 << 20), ("slab", 1 << 20)),
        (LoadOptions(experts="resident"), ("resident", None)),
        (LoadOptions(experts="mapped", expert_budget=1 << 20), ("mapped", None)),
    ],
)
def test_a_budget_of_slabs_goes_with_slabs(options: LoadOptions, told_of_experts: tuple[str, int | None]) -> None:
    entry = CatalogueModel("m", Path(__file__), experts="slab", expert_budget=1 << 30)
    settings = worker_settings(entry, options, Settings())
    assert (settings["experts"], settings["expert_budget"]) == told_of_experts


async def test_a_real_worker_understands_every_setting(tmp_path: Path) -> None:
    from worker.settings import WorkerSettings

    worker = WorkerDefaults(prefix_cache_folder=tmp_path / "prefixes", prefix_cache_bytes=7)
    marks = ("<a>", "</a>")
    words = {"tool_dialect": "hermes", "task": "embed", "experts": "slab", "expert_trace": tmp_path / "trace"}
    adapters: dict[str, Any] = {
        "adapters_folder": tmp_path / "a",
        "adapters": (DesiredAdapter("x"), DesiredAdapter("y", "z", True, "r")),
    }
    settings = await told(tmp_path, LoadOptions(), worker, kv_scheme="4", reasoning_marks=marks, **words, **adapters)
    understood = WorkerSettings.from_json(json.dumps(settings).encode())
    assert (understood.model, understood.kv_scheme, understood.prefix_cache_bytes) == ("m", "4", 7)
    assert understood.prefix_cache_folder == str(tmp_path / "prefixes")
    assert (understood.reasoning_marks, understood.tool_dialect) == (["<a>", "</a>"], "hermes")
    assert understood.task == "embed"
    assert (understood.adapters_folder, len(understood.adapters)) == (str(tmp_path / "a"), 2)
    assert (understood.experts, understood.expert_trace) == ("slab", str(tmp_path / "trace"))


def test_the_limits_that_are_told_of_a_model_that_is_not_loaded_are_those_that_its_worker_gets() -> None:
    worker = WorkerDefaults(max_queue_requests=3, max_audio_s=60.5, audio_idle_s=1.5)
    settings = Settings(worker=worker, grpc=GrpcSettings(max_response_bytes=2048))
    given = worker_settings(CatalogueModel("m", Path(__file__)), LoadOptions(), settings)
    limits = told_limits(settings)
    assert limits.max_queue_requests == given["max_queue_requests"] == 3
    assert (limits.max_request_bytes, limits.max_response_bytes) == (given["max_request_bytes"], 2048)
    assert limits.max_audio_duration.ToMilliseconds() == given["max_audio_s"] * 1000 == 60_500
    assert limits.default_idle_timeout.ToMilliseconds() == given["audio_idle_s"] * 1000 == 1_500


def test_a_worker_sees_little_of_the_environment() -> None:
    environment = {
        "PATH": "/bin",
        "HOME": "/home/ann",
        "LC_ALL": "C",
        "OPENBLAS_NUM_THREADS": "2",
        "PYTHONPATH": "/else",
        "POMONA_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    assert worker_environment(environment) == {
        "PATH": "/bin",
        "HOME": "/home/ann",
        "LC_ALL": "C",
        "OPENBLAS_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
    }
