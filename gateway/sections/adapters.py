"""What the settings say of a model's adapters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from gateway.catalogue import is_name
from gateway.desired_adapters import MAX_TOLD_BYTES, DesiredAdapter, latest
from gateway.sections.section import GIB, MIB, Bytes, Section, absolute


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("is no name: letters, digits, '.', '_' and '-', with one '/' at most")
    return text


def _source(text: str) -> str:
    return _name(text) if text else text


class AdapterSettings(Section):
    """One adapter that is mounted whenever the model is."""

    adapter: Annotated[str, AfterValidator(_name), Field(description="What clients call it. Required.")]
    source: Annotated[
        str, AfterValidator(_source), Field(description="Its name in `adapters_folder`. Default: the same.")
    ] = ""
    pinned: Annotated[bool, Field(description="Whether it may not go for others. Default: false.")] = False
    revision: Annotated[str, Field(max_length=128, description="That its content must have. Default: any.")] = ""


def _in_a_folder(adapters: tuple[AdapterSettings, ...], info: ValidationInfo) -> tuple[AdapterSettings, ...]:
    if adapters and info.data.get("adapters_folder") is None:
        raise ValueError("needs adapters_folder, where they are")
    twice = [name for name, count in Counter(one.adapter for one in adapters).items() if count > 1]
    if twice:
        raise ValueError(f"two are named {twice[0]!r}")
    told = [DesiredAdapter(one.adapter, one.source, one.pinned, one.revision) for one in adapters]
    if len(latest(told)) < len(told):
        raise ValueError(
            f"{len(told)} with such names are more than a worker can be told of: {MAX_TOLD_BYTES} bytes of JSON;"
            " lazy_adapters mounts what requests name, without a list"
        )
    return adapters


AdaptersFolder = Annotated[
    Annotated[Path, AfterValidator(absolute)] | None,
    Field(
        description="Where its LoRA adapters are, a folder for each; a relative path starts at the current folder."
        " Default: none."
    ),
]
AdaptersBytes = Annotated[
    Bytes, Field(ge=MIB, le=1024 * GIB, description="Mounted adapters together, in bytes. Default: 256 MiB.")
]
LazyAdapters = Annotated[
    bool, Field(description="Whether a request mounts an adapter of the folder that it names. Default: false.")
]
MountedAdapters = Annotated[
    tuple[AdapterSettings, ...],
    AfterValidator(_in_a_folder),
    Field(description="Those that are mounted whenever the model is. Default: none."),
]
