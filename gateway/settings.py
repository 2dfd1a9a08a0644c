"""All settings of the gateway: one frozen tree from a TOML file, POMONA_* variables and flags.

Flags win over variables, variables over the file. A variable names its section with two underscores:
`POMONA_LIMITS__MAX_REQUESTS=100`. A key or a variable that nothing reads is refused by its name.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableSettings

from gateway.merging import merge
from gateway.sections.grpc import GrpcSettings
from gateway.sections.limits import LimitSettings
from gateway.sections.logs import LogSettings
from gateway.sections.memory import MemorySettings
from gateway.sections.metrics import MetricsSettings
from gateway.sections.model import ModelSettings
from gateway.sections.retries import RetrySettings
from gateway.sections.section import absolute
from gateway.sections.security import SecuritySettings
from gateway.sections.supervision import SupervisionSettings
from gateway.sections.tracing import TracingSettings
from gateway.sections.turns import TurnSettings
from gateway.sections.worker import WorkerDefaults

PREFIX = "POMONA_"
SECTION = "__"
OTHERS = frozenset({"POMONA_SERVER", "POMONA_CA", "POMONA_TOKEN", "POMONA_NATIVE"})  # the client's, and the build's


class SettingsError(Exception):
    """Raised when the settings cannot be read or a value in them is wrong; the text has a line for each."""


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
    models_folder: Annotated[
        Annotated[Path, AfterValidator(absolute)] | None,
        Field(
            description="Each folder or GGUF file in it is a model by its name, `name` or `organisation/name`; models"
            " of these settings go before it, and it before the hub's cache. Default: none."
        ),
    ] = None
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
    state_folder: Annotated[
        Literal["none"] | Annotated[Path, AfterValidator(absolute)] | None,
        Field(
            description="Where it is kept beyond this server what callers chose for models: load options, pins, idle"
            " times and adapters, in a file for each address; `none`: nowhere. Default: the user's folder for state."
        ),
    ] = None
    models: Annotated[tuple[ModelSettings, ...], Field(description="The catalogue. Default: no model.")] = ()
    grpc: Annotated[GrpcSettings, Field(description="Messages and connections.")] = GrpcSettings()
    limits: Annotated[LimitSettings, Field(description="Requests.")] = LimitSettings()
    retries: Annotated[RetrySettings, Field(description="Requests whose worker goes away.")] = RetrySettings()
    worker: Annotated[WorkerDefaults, Field(description="What every worker is told.")] = WorkerDefaults()
    memory: Annotated[MemorySettings, Field(description="Memory for models.")] = MemorySettings()
    supervision: Annotated[SupervisionSettings, Field(description="Life and death of workers.")] = SupervisionSettings()
    security: Annotated[SecuritySettings, Field(description="Who may call.")] = SecuritySettings()
    turns: Annotated[TurnSettings, Field(description="Turns on a device that workers share.")] = TurnSettings()
    logs: Annotated[LogSettings, Field(description="Log lines.")] = LogSettings()
    metrics: Annotated[MetricsSettings, Field(description="For Prometheus.")] = MetricsSettings()
    tracing: Annotated[TracingSettings, Field(description="For OpenTelemetry.")] = TracingSettings()
    admin_listen: Annotated[
        str,
        Field(
            description="`unix:PATH` of a second socket, for who runs the server alone (mode 0600, no tokens):"
            " AdminService, ServerService, ModelService, health and channelz. Empty: there is none. Default: empty."
        ),
    ] = ""


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
        words = _unknown_key(one["loc"]) if one["type"] == "extra_forbidden" else one["msg"]
        yield f"{'.'.join(place)}: {cause if isinstance(cause, ValueError) else words}"


def _unknown_key(place: tuple[int | str, ...]) -> str:
    """Say that there is no such key, and which one of its section may have been meant."""
    section: Any = Settings
    for name in place[:-1]:
        if isinstance(name, str):
            section = ModelSettings if name == "models" else section.model_fields[name].annotation
    known = section.model_fields if isinstance(section, type) and issubclass(section, BaseModel) else ()
    meant = difflib.get_close_matches(str(place[-1]), known, 1)
    return "there is no such setting" + (f"; did you mean {meant[0]}?" if meant else "")


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
