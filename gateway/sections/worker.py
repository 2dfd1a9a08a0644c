"""The section of the settings that every worker is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from gateway.sections.section import GIB, MIB, Bytes, Section, absolute


def _behind_memory(folder: Path | None, info: ValidationInfo) -> Path | None:
    if folder is not None and info.data.get("prefix_cache_bytes") == 0:
        raise ValueError("needs prefix_cache_bytes above 0: prompts reach the folder through the cache in memory")
    return folder


class WorkerDefaults(Section):
    """What every worker is told."""

    max_queue_requests: Annotated[
        int, Field(ge=1, le=100_000, description="Requests that wait inside a worker. Default: 64.")
    ] = 64
    prefill_chunk_tokens: Annotated[
        int, Field(ge=16, le=2048, description="Prompt tokens in one step of the fast path, to 2,048. Default: 512.")
    ] = 512
    prefill_gap_s: Annotated[
        float, Field(gt=0, le=60, description="How long prompts hold up running streams, in seconds. Default: 0.25.")
    ] = 0.25
    outbox_bytes: Annotated[
        Bytes, Field(ge=1024, le=256 * MIB, description="What waits for a slow reader, in bytes. Default: 256 KiB.")
    ] = 256 * 1024
    slow_reader_s: Annotated[
        float, Field(gt=0, le=3600, description="How long a reader may stand still, in seconds. Default: 30.")
    ] = 30.0
    max_audio_s: Annotated[
        float, Field(ge=1, le=604_800, description="Audio of one request, in seconds. Default: 14,400, four hours.")
    ] = 14_400.0
    max_audio_bytes: Annotated[
        Bytes, Field(ge=1024, le=1024 * GIB, description="Audio of one request as it comes, in bytes. Default: 2 GiB.")
    ] = 2 * GIB
    max_audio_decoded_bytes: Annotated[
        Bytes,
        Field(
            ge=1024,
            le=1024 * GIB,
            description="What it decodes to, in bytes: floats of all channels. Default: 8 GiB.",
        ),
    ] = 8 * GIB
    audio_idle_s: Annotated[
        float,
        Field(ge=0.1, le=3600, description="How long a stream of audio may send nothing, in seconds. Default: 30."),
    ] = 30.0
    template_timeout_s: Annotated[
        float, Field(gt=0, le=600, description="How long a chat template may run, in seconds. Default: 5.")
    ] = 5.0
    compute_threads: Annotated[
        int | None, Field(ge=1, le=1024, description="Threads of the CPU backend. Default: one for each core.")
    ] = None
    prefix_cache_bytes: Annotated[
        Bytes,
        Field(
            ge=0,
            le=1024 * GIB,
            description="Keys and values kept for later prompts, in bytes; 0: none. Default: 512 MiB.",
        ),
    ] = 512 * MIB
    prefix_cache_folder: Annotated[
        Annotated[Path, AfterValidator(absolute)] | None,
        AfterValidator(_behind_memory),
        Field(description="Where they outlive a worker; a relative path starts at the current folder. Default: none."),
    ] = None
    prefix_cache_folder_bytes: Annotated[
        Bytes,
        Field(ge=MIB, le=1024 * GIB, description="What all workers may keep there, in bytes. Default: 8 GiB."),
    ] = 8 * GIB
