"""Which options a load has: those asked for now, those of the load before, or what is configured."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Protocol

from gateway.experts import BUDGETED, ExpertsWord
from gateway.model_status import LoadOptions


class Configured(Protocol):
    """What holds for a model where nothing is chosen; None: nothing is configured either."""

    @property
    def context_tokens(self) -> int | None:
        """The longest prompt and answer together."""
        ...

    @property
    def max_batch_rows(self) -> int | None:
        """How many requests run side by side."""
        ...

    @property
    def kv_scheme(self) -> str | None:
        """How keys and values are kept."""
        ...

    @property
    def experts(self) -> ExpertsWord | None:
        """Where routed experts lie."""
        ...

    @property
    def expert_budget(self) -> int | None:
        """Of their slabs, in bytes."""
        ...


def following(last: LoadOptions, asked: LoadOptions, configured: Configured) -> LoadOptions:
    """Return what is chosen once a load was asked for.

    What it leaves open stays as it was chosen before, but for a budget of experts: that goes with their mode.

    Args:
        last: what was chosen before.
        asked: what the load names.
        configured: for the model.
    """
    given: dict[str, Any] = {name: value for name, value in asdict(asked).items() if value is not None}
    if asked.experts not in {None, in_effect(last, configured).experts}:
        given.setdefault("expert_budget", None)
    return replace(last, **given)


def in_effect(chosen: LoadOptions, configured: Configured) -> LoadOptions:
    """Return the options of a load: as chosen, else as configured; a budget where there is something that it bounds."""
    experts = chosen.experts or configured.experts or "auto"
    budget = chosen.expert_budget or configured.expert_budget
    return LoadOptions(
        chosen.context_tokens or configured.context_tokens,
        chosen.max_batch_rows or configured.max_batch_rows,
        chosen.kv_scheme or configured.kv_scheme,
        experts,
        budget if experts in BUDGETED else None,
    )
