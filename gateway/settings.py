"""All settings of the gateway: one frozen tree from a TOML file, POMONA_* variables and flags.

Flags win over variables, variables over the file. A variable names its section with two underscores:
`POMONA_LIMITS__MAX_REQUESTS=100`. A key or a variable that nothing reads is refused by its name.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableSettings

from gateway.adapter_settings import AdaptersBytes, AdaptersFolder, LazyAdapters, MountedAdapters
from gateway.experts import MAX_BUDGET_BYTES, MIN_BUDGET_BYTES, ExpertsWord, check_budget
from gateway.kv_scheme import KV_SCHEME_FORMS, checked_kv_scheme
from gateway.merging import merge
from gateway.section import GIB, MIB, Bytes, Section, absolute
from gateway.worker_defaults import WorkerDefaults

PREFIX = "POMONA_"
SECTION = "__"
OTHERS = frozenset({"POMONA_SERVER", "POMONA_TOKEN", "POMONA_NATIVE"})  # the client's, and the build's


class SettingsError(Exception):
    """Raised when the settings cannot be read or a value in them is wrong; the text has a line for each."""


def _kv_scheme(text: str, info: ValidationInfo) -> str:
    return checked_kv_scheme(text, info.data.get("checkpoint"))


def _expert_budget(budget: int | None, info: ValidationInfo) -> int | None:
    if budget is not None and "experts" in info.data:
        check_budget(info.data["experts"])
    return budget


def _in_a_folder(file: Path) -> Path:
    if not file.parent.is_dir():
        raise ValueError(f"is to lie in {file.parent}, which is no folder")
    return file


Mark = Annotated[str, Field(min_length=1, max_length=64)]


class ModelSettings(Section):
    """One model that clients may ask for."""

    name: Annotated[str, Field(description="Canonical name, `name` or `organisation/name`. Required.")]
    checkpoint: Annotated[
        Path,
        AfterValidator(absolute),
        Field(description="Its folder or GGUF file; a relative path starts at the current folder. Required."),
    ]
    aliases: Annotated[tuple[str, ...], Field(description="Other names for it. Default: none.")] = ()
    context_tokens: Annotated[
        int | None,
        Field(ge=16, le=16_777_216, description="Prompt and answer together, in tokens. Default: the checkpoint's."),
    ] = None
    max_batch_rows: Annotated[
        int, Field(ge=1, le=256, description="Requests that run side by side, 1 to 256. Default: 16.")
    ] = 16
    path: Annotated[
        Literal["fast", "reference"],
        Field(description="`fast` is what is served; `reference` is bit-equal to mlx-lm. Default: fast."),
    ] = "fast"
    kv_scheme: Annotated[
        str,
        AfterValidator(_kv_scheme),
        Field(description=f"How keys and values are kept: {KV_SCHEME_FORMS}. Default: none, as they are computed."),
    ] = "none"
    kv_bytes: Annotated[
        Bytes | None,
        Field(
            ge=MIB,
            le=1024 * GIB,
            description="Keys and values of all running requests, in bytes; one whole context fits always."
            " Default: whole contexts of all rows, up to 4 GiB.",
        ),
    ] = None
    experts: Annotated[
        ExpertsWord,
        Field(
            description="Where routed experts lie: `resident`, `slab`, `mapped` or `auto`, the first of them that fits."
            " Default: auto."
        ),
    ] = "auto"
    expert_budget: Annotated[
        Bytes | None,
        AfterValidator(_expert_budget),
        Field(
            ge=MIN_BUDGET_BYTES,
            le=MAX_BUDGET_BYTES,
            description="What the slabs of `slab` may take, in bytes; with `auto`, `resident` must fit in it too."
            " Default: what the rest of the model leaves.",
        ),
    ] = None
    expert_trace: Annotated[
        Annotated[Path, AfterValidator(absolute), AfterValidator(_in_a_folder)] | None,
        Field(description="Where to write down which experts are needed, for pomona expert-trace. Default: nowhere."),
    ] = None
    reasoning_marks: Annotated[
        Literal["none"] | tuple[Mark, Mark] | None,
        Field(description="What opens and closes reasoning, or `none`. Default: what the chat template says."),
    ] = None
    tool_dialect: Annotated[
        str | None,
        Field(min_length=1, description="How it writes tool calls, by name. Default: what the chat template says."),
    ] = None
    task: Annotated[
        Literal["generate", "embed", "rerank"] | None,
        Field(description="What a text model is for: `generate`, `embed` or `rerank`. Default: what its files say."),
    ] = None
    adapters_folder: AdaptersFolder = None
    adapters_bytes: AdaptersBytes = 256 * MIB
    lazy_adapters: LazyAdapters = False
    adapters: MountedAdapters = ()


class GrpcSettings(Section):
    """What clients may send, and how connections are kept."""

    max_request_bytes: Annotated[
        Bytes, Field(ge=1024, le=1024 * MIB, description="Largest message from a client, in bytes. Default: 16 MiB.")
    ] = 16 * MIB
    max_response_bytes: Annotated[
        Bytes, Field(ge=1024, le=1024 * MIB, description="Largest message to a client, in bytes. Default: 16 MiB.")
    ] = 16 * MIB
    max_metadata_bytes: Annotated[
        Bytes, Field(ge=1024, le=MIB, description="Largest metadata of a request, in bytes. Default: 16 KiB.")
    ] = 16 * 1024
    max_concurrent_streams: Annotated[
        int, Field(ge=1, le=100_000, description="Open RPCs of one connection. Default: 256.")
    ] = 256
    min_ping_interval_s: Annotated[
        float, Field(ge=1, le=3600, description="Clients that ping more often are cut off, in seconds. Default: 20.")
    ] = 20.0
    keepalive_s: Annotated[
        float, Field(ge=1, le=86_400, description="How often a quiet connection is pinged, in seconds. Default: 60.")
    ] = 60.0
    keepalive_timeout_s: Annotated[
        float, Field(ge=1, le=3600, description="How long a ping may stay unanswered, in seconds. Default: 20.")
    ] = 20.0


class LimitSettings(Section):
    """How many requests are taken, and how long each may last."""

    max_requests: Annotated[
        int, Field(ge=1, le=100_000, description="Requests in flight in the whole server. Default: 256.")
    ] = 256
    max_requests_per_model: Annotated[
        int, Field(ge=1, le=100_000, description="Requests in flight of one model. Default: 64.")
    ] = 64
    max_waiting: Annotated[
        int, Field(ge=0, le=100_000, description="Requests that wait for one of those places. Default: 64.")
    ] = 64
    max_wait_s: Annotated[
        float, Field(ge=0, le=3600, description="How long a request waits for a place, in seconds. Default: 30.")
    ] = 30.0
    max_request_s: Annotated[
        float, Field(ge=1, le=86_400, description="How long a request may last, in seconds. Default: 3600.")
    ] = 3600.0
    first_message_s: Annotated[
        float, Field(gt=0, le=3600, description="How long a client may send nothing at first, in seconds. Default: 30.")
    ] = 30.0
    slow_reader_s: Annotated[
        float,
        Field(gt=0, le=3600, description="How long a client may take nothing of its answer, in seconds. Default: 60."),
    ] = 60.0
    max_held_bytes: Annotated[
        Bytes,
        Field(
            ge=1024,
            le=1024 * 1024 * MIB,
            description="Requests that wait or whose answer has not begun, in bytes. Default: 256 MiB.",
        ),
    ] = 256 * MIB
    drain_grace_s: Annotated[
        float,
        Field(ge=0, le=86_400, description="How long a stop waits for running requests, in seconds. Default: 30."),
    ] = 30.0
    short_grace_s: Annotated[
        float, Field(ge=0, le=86_400, description="What a second stop signal cuts that to, in seconds. Default: 1.")
    ] = 1.0
    unload_grace_s: Annotated[
        float, Field(ge=0, le=86_400, description="How long UnloadModel waits for requests, in seconds. Default: 30.")
    ] = 30.0
    describe_s: Annotated[
        float,
        Field(gt=0, le=600, description="How long reading a checkpoint's headers may take, in seconds. Default: 30."),
    ] = 30.0


class SupervisionSettings(Section):
    """When a worker counts as lost, and how it is started again and stopped."""

    handshake_s: Annotated[
        float, Field(gt=0, le=600, description="From the start of a process to its answer, in seconds. Default: 30.")
    ] = 30.0
    heartbeat_s: Annotated[
        float, Field(ge=0.02, le=60, description="How often a worker reports, in seconds. Default: 1.")
    ] = 1.0
    suspect_after: Annotated[
        int, Field(ge=1, le=1000, description="Missed reports until it gets no new work. Default: 3.")
    ] = 3
    lost_after: Annotated[
        int, Field(ge=1, le=1000, description="Missed reports until it is given up. Default: 10.")
    ] = 10
    load_stall_s: Annotated[
        float, Field(gt=0, le=3600, description="How long a load may stand still, in seconds. Default: 30.")
    ] = 30.0
    compute_stall_s: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="How long a step may stand still, in seconds; 0.25 a token more. Default: 60.",
        ),
    ] = 60.0
    back_off_first_s: Annotated[
        float, Field(gt=0, le=3600, description="The pause after the first crash, in seconds. Default: 0.5.")
    ] = 0.5
    back_off_limit_s: Annotated[
        float, Field(gt=0, le=3600, description="The longest pause, in seconds. Default: 30.")
    ] = 30.0
    crash_budget: Annotated[
        int, Field(ge=1, le=1000, description="Crashes within the window until a model is FAILED. Default: 5.")
    ] = 5
    crash_window_s: Annotated[
        float, Field(gt=0, le=86_400, description="The window of the budget, in seconds. Default: 600.")
    ] = 600.0
    stop_grace_s: Annotated[
        float, Field(ge=0, le=3600, description="From Shutdown's end to SIGTERM, in seconds. Default: 5.")
    ] = 5.0
    term_s: Annotated[
        float, Field(ge=0, le=3600, description="From SIGTERM to the next step, in seconds. Default: 10.")
    ] = 10.0
    dump_s: Annotated[
        float, Field(ge=0, le=3600, description="From the stack dump to SIGKILL, in seconds. Default: 5.")
    ] = 5.0


class LogSettings(Section):
    """What is logged, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="The least that is logged. Default: info."),
    ] = "info"
    format: Annotated[
        Literal["json", "console"], Field(description="Lines for programs or for people. Default: console.")
    ] = "console"
    kept_lines: Annotated[
        int, Field(ge=1, le=100_000, description="Past lines that StreamLogs can give. Default: 1000.")
    ] = 1000


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=SECTION, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    listen: Annotated[
        str,
        Field(description="`HOST:PORT` (a loopback host; port 0 picks one) or `unix:PATH`. Default: 127.0.0.1:50051."),
    ] = "127.0.0.1:50051"
    cpu_kernels: Annotated[
        bool,
        Field(description="Whether kernels of our own compute on the CPU; false: all is MLX's. Default: true."),
    ] = True
    allow_mlx_lm: Annotated[
        bool,
        Field(
            description="Whether mlx-lm computes the architectures that are not written here; it is installed with"
            " `pip install 'pomona[mlx-lm]'`. Default: false."
        ),
    ] = False
    hub_models: Annotated[
        bool,
        Field(description="Whether models in the hub's cache are served, by their repositories' names. Default: true."),
    ] = True
    allow_pull: Annotated[
        bool | None,
        Field(
            description="Whether callers may download models into the hub's cache and delete them there. Default: true"
            " where only this machine reaches the server."
        ),
    ] = None
    models: Annotated[tuple[ModelSettings, ...], Field(description="The catalogue. Default: no model.")] = ()
    grpc: Annotated[GrpcSettings, Field(description="Messages and connections.")] = GrpcSettings()
    limits: Annotated[LimitSettings, Field(description="Requests.")] = LimitSettings()
    worker: Annotated[WorkerDefaults, Field(description="What every worker is told.")] = WorkerDefaults()
    supervision: Annotated[SupervisionSettings, Field(description="Life and death of workers.")] = SupervisionSettings()
    logs: Annotated[LogSettings, Field(description="Log lines.")] = LogSettings()


def load_settings(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge the file, the variables and the flags into one checked tree.

    Args:
        file: a TOML file.
        flags: the tree's keys, nested; models of flags and variables join those of the file, by name.

    Raises:
        SettingsError: the file cannot be read, a key is not known, or a value is out of its range.
    """
    _refuse_unknown_variables(os.environ)
    merged: dict[str, Any] = {}
    for source in (_read(file), _variables(), flags or {}):
        merged = merge(merged, source)
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise SettingsError("\n".join(_problems(error, merged))) from None


def _problems(error: ValidationError, merged: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value that is wrong, in words of our own where the check is; a model by its name."""
    for one in error.errors(include_input=False, include_url=False):
        place = list(map(str, one["loc"]))
        if one["loc"][:1] == ("models",) and len(place) > 1:
            place[1] = _model_name(merged.get("models"), one["loc"][1])
        cause = one.get("ctx", {}).get("error")
        yield f"{'.'.join(place)}: {cause if isinstance(cause, ValueError) else one['msg']}"


def _model_name(models: Any, index: object) -> str:
    """Return what the model at an index is called; the index where it has no name."""
    try:
        return str(models[index]["name"])
    except (KeyError, IndexError, TypeError):
        return str(index)


def process_environment() -> dict[str, str]:
    """Return this process's environment, for whoever starts another process."""
    return dict(os.environ)


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: it cannot be read") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: {error}") from error


def _variables() -> dict[str, Any]:
    """Return what the variables say."""
    try:
        return EnvSettingsSource(Settings)()
    except UnreadableSettings:
        names = ", ".join(filter(_is_unreadable, os.environ)) or f"a {PREFIX} variable"
        raise SettingsError(f"{names}: the value is not JSON; {PREFIX}SECTION{SECTION}KEY sets one key") from None


def _is_unreadable(name: str) -> bool:
    """Say whether a variable stands for a section or the models and is not JSON."""
    key = name.upper().removeprefix(PREFIX).lower()
    if not name.upper().startswith(PREFIX) or not (key == "models" or key in _sections()):
        return False
    try:
        json.loads(os.environ[name])
    except ValueError:
        return True
    return False


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Refuse a variable that is named like ours and that nothing reads."""
    for name in environment:
        key, found, _ = name.upper().removeprefix(PREFIX).partition(SECTION)
        if not name.upper().startswith(PREFIX) or name in OTHERS:
            continue
        if key.lower() not in (_sections() if found else Settings.model_fields):
            what = "section" if found else "setting"
            raise SettingsError(f"{name}: there is no {what} {key.lower()}")


def _sections() -> frozenset[str]:
    """Return the names of the tree's sections."""
    kinds = ((name, field.annotation) for name, field in Settings.model_fields.items())
    return frozenset(name for name, kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
