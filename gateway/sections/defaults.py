"""What the settings say for requests to one model that leave it open."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.sections.section import Section

UINT32 = (1 << 32) - 1


class RequestDefaults(Section):
    """How tokens are drawn, and how long an answer is, where a request does not say; unset: the checkpoint's."""

    temperature: Annotated[float | None, Field(ge=0, le=100, description="0 is greedy. Default: the checkpoint's.")] = (
        None
    )
    top_p: Annotated[
        float | None, Field(gt=0, le=1, description="Probability that is kept, above 0. Default: the checkpoint's.")
    ] = None
    top_k: Annotated[
        int | None,
        Field(ge=0, le=(1 << 31) - 1, description="Tokens that are kept; 0: all. Default: the checkpoint's."),
    ] = None
    min_p: Annotated[
        float | None, Field(ge=0, le=1, description="Of the most probable one; 0 keeps all. Default: the checkpoint's.")
    ] = None
    xtc_probability: Annotated[
        float | None,
        Field(ge=0, le=1, description="How often the most probable tokens are left out. Default: 0."),
    ] = None
    xtc_threshold: Annotated[
        float | None, Field(ge=0, le=0.5, description="From which probability on. Default: 0.1.")
    ] = None
    repetition_penalty: Annotated[
        float | None, Field(gt=0, le=100, description="1 is none. Default: the checkpoint's.")
    ] = None
    frequency_penalty: Annotated[float | None, Field(ge=-100, le=100, description="0 is none. Default: 0.")] = None
    presence_penalty: Annotated[float | None, Field(ge=-100, le=100, description="0 is none. Default: 0.")] = None
    penalty_window: Annotated[
        int | None,
        Field(ge=0, le=UINT32, description="Tokens that the penalties look back over; 0: all. Default: 20."),
    ] = None
    seed: Annotated[
        int | None, Field(ge=0, le=(1 << 64) - 1, description="The same for every request. Default: another for each.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            le=UINT32,
            description="Longest answer, in tokens. Default: the checkpoint's, else what the context has room for.",
        ),
    ] = None
