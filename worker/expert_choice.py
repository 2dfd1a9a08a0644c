"""Where routed experts are to lie: what the settings ask for, or else what fits; no MLX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.checkpoint.fit import ExpertNeeds
from models.experts.options import ExpertsMode
from worker.errors import ModelLoadFailed

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ExpertsWish:
    """What the settings say.

    Attributes:
        mode: where experts are to lie; None: where there is room.
        budget_bytes: what slabs may take; where there is no mode, what resident experts may take too. None: what the
            rest of the model leaves.
    """

    mode: ExpertsMode | None = None
    budget_bytes: int | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ExpertsWish:
        """Return what a worker's settings say, by name; what is not there has a worker's own default."""
        word = settings.get("experts", AUTO)
        return cls(None if word == AUTO else ExpertsMode(word), settings.get("expert_budget"))

    def check_none(self, reason: str) -> None:
        """Refuse to be asked for anything.

        Raises:
            ModelLoadFailed: something is set, for a model that `reason` tells of.
        """
        for option, value in (("experts", self.mode), ("expert_budget", self.budget_bytes)):
            if value is not None:
                raise ModelLoadFailed(f"{option} is set, and {reason}", option=option)


@dataclass(frozen=True, slots=True)
class ExpertsChoice:
    """Where experts lie.

    Attributes:
        mode: where.
        memory_bytes: what they take of memory.
        budget_bytes: what slabs may take; 0 in other modes.
        reason: why they lie there, for the log.
    """

    mode: ExpertsMode
    memory_bytes: int
    budget_bytes: int = 0
    reason: str = field(default="", compare=False)


def choose_experts(wish: ExpertsWish, needs: ExpertNeeds, room_bytes: int | None, *, has_pack: bool) -> ExpertsChoice:
    """Return where experts lie.

    Where that is left open they are resident if all fit; else in slabs, which are faster than pages of a file with as
    much memory, if a step can be served with the budget or what is left; else mapped, where a pack lies beside the
    checkpoint and no budget is set. With nothing of these they are in the smallest slabs, for others to say that there
    is no room.

    Args:
        wish: of the settings.
        needs: what the experts take.
        room_bytes: what the rest of the model leaves of the memory for models; None: no end of it.
        has_pack: whether a pack lies beside the checkpoint.

    Raises:
        ModelLoadFailed: there is no pack to map, slabs cannot hold the experts, or the budget holds too few.
    """
    mode, reason = (wish.mode, "asked for") if wish.mode else _fitting(wish, needs, room_bytes, has_pack=has_pack)
    match mode:
        case ExpertsMode.RESIDENT:
            choice = ExpertsChoice(ExpertsMode.RESIDENT, needs.resident_bytes)
        case ExpertsMode.MAPPED if has_pack:
            choice = ExpertsChoice(ExpertsMode.MAPPED, needs.converted_bytes)
        case ExpertsMode.MAPPED:
            remedy = "pomona pack-experts MODEL makes one, and pomona load MODEL --experts auto does without"
            problem = f"experts is mapped, and there is no pack that can be mapped here; {remedy}"
            raise ModelLoadFailed(problem, option="experts")
        case ExpertsMode.SLAB:
            choice = _slabs(wish.budget_bytes, needs, room_bytes)
    return replace(choice, reason=reason)


def budget_too_small(budget_bytes: int | None, least_bytes: int) -> ModelLoadFailed:
    """Return what is raised where a budget of slabs cannot serve a step.

    Args:
        budget_bytes: that is too small; None: of what the rest leaves.
        least_bytes: the smallest that would do.
    """
    given = "what is left for experts" if budget_bytes is None else f"expert_budget is {budget_bytes} bytes, which"
    problem = f"{given} is too small: a step needs {least_bytes} bytes of experts at least"
    return ModelLoadFailed(problem, option="expert_budget", least_bytes=str(least_bytes))


def _fitting(
    wish: ExpertsWish, needs: ExpertNeeds, room_bytes: int | None, *, has_pack: bool
) -> tuple[ExpertsMode, str]:
    """Return the first mode that fits, and why it is that one."""
    bounds = [bound for bound in (wish.budget_bytes, room_bytes) if bound is not None]
    if not bounds or needs.resident_bytes <= min(bounds):
        return ExpertsMode.RESIDENT, "all fit"
    if needs.slabs is not None and needs.slabs.least <= bounds[0]:
        return ExpertsMode.SLAB, "not all fit, and " + ("a budget bounds them" if wish.budget_bytes else "slabs do")
    if has_pack and wish.budget_bytes is None:  # which pages of a file would not keep to
        return ExpertsMode.MAPPED, "neither all nor slabs fit, and there is a pack"
    return ExpertsMode.SLAB, "neither all nor slabs fit, and no pack can be mapped"


def _slabs(budget_bytes: int | None, needs: ExpertNeeds, room_bytes: int | None) -> ExpertsChoice:
    if needs.slabs is None:
        problem = "the experts are not stored as they are computed with, which slabs cannot hold"
        raise ModelLoadFailed(f"{problem}; experts = resident has all of them in memory", option="experts")
    least = needs.slabs.least
    if budget_bytes is not None and budget_bytes < least:
        raise budget_too_small(budget_bytes, least)
    if budget_bytes is None:
        budget_bytes = needs.slabs.most if room_bytes is None else max(least, room_bytes)
    taken = min(budget_bytes, needs.slabs.most)
    return ExpertsChoice(ExpertsMode.SLAB, taken, taken)
