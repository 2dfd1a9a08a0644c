"""What the settings say of memory: what models may take, and how long they stay."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from gateway.sections.section import GIB, MIB, Bytes, Section


def _above_soft(share: float, info: ValidationInfo) -> float:
    if share < info.data.get("soft_share", 0.0):
        raise ValueError("is below soft_share")
    return share


class MemorySettings(Section):
    """What models may take of this machine's memory, and how long they stay where nobody uses them."""

    budget: Annotated[
        Bytes | None,
        Field(
            ge=64 * MIB,
            le=1024 * 1024 * GIB,
            description="What models may take together, in bytes. Default: three quarters of the machine's memory, or"
            " of the container's.",
        ),
    ] = None
    soft_share: Annotated[
        float,
        Field(gt=0, le=1, description="From this share of memory in use on, 0 to 1, no load starts. Default: 0.85."),
    ] = 0.85
    hard_share: Annotated[
        float,
        AfterValidator(_above_soft),
        Field(
            gt=0,
            le=1,
            description="From this share on requests are refused, and the newest load goes. Default: 0.95.",
        ),
    ] = 0.95
    sample_s: Annotated[
        float, Field(ge=0.05, le=60, description="How often memory is measured, in seconds. Default: 1.")
    ] = 1.0
    min_residence_s: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description="How long a loaded model stays at least before it goes for another, in seconds. Default: 5.",
        ),
    ] = 5.0
    settle_s: Annotated[
        float,
        Field(
            ge=0,
            le=600,
            description="How long a load waits for the memory of one that went to be free, in seconds. Default: 5.",
        ),
    ] = 5.0
    idle_ttl_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=31_536_000,
            description="How long a model stays that nobody uses, in seconds; 0: it goes right after the last request."
            " Default: for ever.",
        ),
    ] = None
