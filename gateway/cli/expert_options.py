"""The options for routed experts that `load` and `fit` share."""

from __future__ import annotations

from typing import Annotated

import typer
from pomona.v1 import model_pb2

from gateway.byte_sizes import FORMS, byte_size
from gateway.cli.failures import UsageError
from gateway.experts import EXPERTS_WORDS, MAX_BUDGET_BYTES, MIN_BUDGET_BYTES, check_budget, experts_mode, experts_word

Experts = Annotated[
    str,
    typer.Option(
        "--experts",
        metavar="MODE",
        help="Where routed experts lie: resident, slab, mapped or auto, the first that fits.",
    ),
]
ExpertBudget = Annotated[str, typer.Option("--expert-budget", metavar="SIZE", help=f"Of their slabs: {FORMS}.")]


def expert_options(experts: str, budget: str) -> model_pb2.LoadOptions:
    """Return what the options say; empty ones leave their field unset.

    Raises:
        UsageError: one is no mode, or no size that a budget can have, or they do not go together.
    """
    options = model_pb2.LoadOptions()
    if experts:
        if experts not in EXPERTS_WORDS:
            raise UsageError(f"--experts must be one of {', '.join(EXPERTS_WORDS)}")
        options.experts_mode = experts_mode(experts)
    if budget:
        options.expert_budget_bytes = _budget_bytes(budget)
        try:
            check_budget(experts_word(options.experts_mode) or "auto")
        except ValueError as error:
            raise UsageError(f"--expert-budget {error}") from error
    return options


def _budget_bytes(text: str) -> int:
    try:
        size = byte_size(text)
    except ValueError as error:
        raise UsageError(f"--expert-budget: {error}") from error
    if not MIN_BUDGET_BYTES <= size <= MAX_BUDGET_BYTES:
        raise UsageError(f"--expert-budget: {text} is not within 64KiB to 1024TiB")
    return size
