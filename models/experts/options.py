"""How the routed experts of a model are held, as chosen for a load; plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class ExpertsMode(Enum):
    """Where routed experts lie while a model runs.

    RESIDENT has all of them in memory. MAPPED computes on pages of the model's pack, which the system reads when they
    are touched and takes back when it needs room. SLAB has as many as a budget holds, and reads others when they are
    routed to. All three compute the same numbers.
    """

    RESIDENT = "resident"
    MAPPED = "mapped"
    SLAB = "slab"


@dataclass(frozen=True, slots=True)
class ExpertsOptions:
    """How a load holds routed experts; a model without any takes no notice.

    Attributes:
        mode: where they lie.
        budget_bytes: of slab mode, what the slabs may take together; None: as much as all experts need. Other modes
            take no notice.
        usage_file: where slab mode keeps which experts were needed often; None: nowhere.
        reason: why they lie there, for the log.
        trace_file: where routing is written down, see `ExpertTrace`; None: nowhere, at no cost.
    """

    mode: ExpertsMode = ExpertsMode.RESIDENT
    budget_bytes: int | None = None
    usage_file: Path | None = None
    reason: str = "asked for"
    trace_file: Path | None = None
