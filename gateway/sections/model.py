"""What the settings say of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from gateway.experts import MAX_BUDGET_BYTES, MIN_BUDGET_BYTES, ExpertsWord, check_budget
from gateway.kv_scheme import KV_SCHEME_FORMS, checked_kv_scheme
from gateway.sections.adapters import AdaptersBytes, AdaptersFolder, LazyAdapters, MountedAdapters
from gateway.sections.defaults import RequestDefaults
from gateway.sections.section import GIB, MIB, Bytes, Section, absolute


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
    defaults: Annotated[
        RequestDefaults,
        Field(description="Of requests that leave something open, before those of the checkpoint. Default: none."),
    ] = RequestDefaults()
    max_requests: Annotated[
        int | None,
        Field(ge=1, le=100_000, description="Requests of it in flight. Default: limits.max_requests_per_model."),
    ] = None
    max_waiting: Annotated[
        int | None,
        Field(ge=0, le=100_000, description="Of them, those that wait for a place. Default: limits.max_waiting."),
    ] = None
    pinned: Annotated[
        bool, Field(description="Whether it is never unloaded to make room for others, nor when idle. Default: false.")
    ] = False
    preload: Annotated[
        bool, Field(description="Whether it is loaded when the server starts; others follow in turn. Default: false.")
    ] = False
    idle_ttl_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=31_536_000,
            description="After how long without a request it is unloaded, in seconds; 0: at once. Default: what holds"
            " for all models.",
        ),
    ] = None
