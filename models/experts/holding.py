"""How a load holds routed experts: what its weights are given for them, and what is said of it afterwards."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from models.checkpoint.checkpoint import TextCheckpoint
from models.checkpoint.errors import CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.routed_experts import routed_experts
from models.checkpoint.shards import ReportBytes
from models.experts.account import ExpertAccount, HeldExperts
from models.experts.mapped import MappedExperts
from models.experts.options import ExpertsMode, ExpertsOptions
from models.experts.pack import PACK_FILE, Pack, find_pack
from models.experts.slabs import Slabs
from models.experts.trace import ExpertTrace
from models.layers.experts import ExpertsHooks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a load gives its weights for routed experts; none of it does anything for a model without them.

    Attributes:
        checkpoint: with its experts where they are to be had from.
        hooks: for its weights.
        options: as they were asked for.
        slabs: that experts are read into; None: they are not.
        trace: that is written; None: none is.
    """

    checkpoint: TextCheckpoint
    hooks: ExpertsHooks
    options: ExpertsOptions
    slabs: Slabs | None = None
    trace: ExpertTrace | None = None

    @classmethod
    def of(cls, checkpoint: TextCheckpoint, options: ExpertsOptions) -> Holding:
        """Find and open what the options need.

        Raises:
            CheckpointError: experts are to be mapped, and there is no pack of them that is of use.
            MappingUnavailable: they are, and this install maps no files.
            TraceUnwritable: the trace cannot be made.
        """
        experts = routed_experts(checkpoint)
        if experts is None:
            return cls(checkpoint, ExpertsHooks(), options)
        pack = None if options.mode is ExpertsMode.RESIDENT else _pack(checkpoint, options.mode)
        _tell(options, has_pack=pack is not None)
        mapped = MappedExperts(pack) if pack is not None and options.mode is ExpertsMode.MAPPED else None
        is_slab = options.mode is ExpertsMode.SLAB
        slabs = Slabs(experts.num_chosen, options.budget_bytes, options.usage_file) if is_slab else None
        trace = None if options.trace_file is None else ExpertTrace(options.trace_file)
        observe = None if trace is None else trace.observe
        placed = checkpoint if pack is None else pack.applied(checkpoint)
        return cls(placed, ExpertsHooks(slabs, mapped, observe), options, slabs, trace)

    def fill(self, report: ReportBytes) -> None:
        """Make slabs, once the model is built, and read what was needed most before.

        Args:
            report: called with (bytes done, bytes in all) of what is read.

        Raises:
            CheckpointRejected: some experts are not stored as they are computed with, and would be in memory for good.
            SlotsTooFew: the budget is too small.
            SlabsUnavailable: this install or this device has none.
            ExpertUnreadable: an expert cannot be read.
            CheckpointCorrupt: a file of experts is no longer the one whose header was read.
            MemoryError: the system has no such memory.
        """
        experts = routed_experts(self.checkpoint)
        if self.slabs is None or experts is None:
            return
        if self.slabs.num_layers < experts.num_layers:
            problem = "has experts that are not stored as they are computed with, which slabs cannot hold"
            raise CheckpointRejected(problem, file=self.checkpoint.weights_file)
        self.slabs.fill(report)

    def held(self, resident_bytes: int, mapped_bytes: int) -> HeldExperts | None:
        """Say how experts are held, once slabs are filled; None: the model has none.

        Args:
            resident_bytes: of experts among the weights in memory.
            mapped_bytes: of weights that stay in their file.
        """
        experts = routed_experts(self.checkpoint)
        if experts is None:
            return None
        return HeldExperts(
            mode=self.options.mode,
            total_bytes=experts.stored_bytes,
            budget_bytes=0 if self.slabs is None else self.options.budget_bytes or self.slabs.nbytes,
            slab_bytes=0 if self.slabs is None else self.slabs.nbytes,
            resident_bytes=resident_bytes,
            mapped_bytes=mapped_bytes,
            account=ExpertAccount() if self.slabs is None else self.slabs.account,
            forget=self.forget,
            close=self.close,
        )

    def forget(self) -> None:
        """Take what was counted until now for none: it served nobody."""
        if self.slabs is not None:
            self.slabs.forget()

    def close(self) -> None:
        """End what was started; a second call does nothing."""
        try:
            if self.slabs is not None:
                self.slabs.close()
        finally:
            if self.trace is not None:
                self.trace.close()


def _tell(options: ExpertsOptions, *, has_pack: bool) -> None:
    """Log where experts lie and why."""
    facts: dict[str, object] = {"experts": options.mode.value, "why": options.reason, "pack": has_pack}
    if options.budget_bytes is not None:
        facts["expert_budget"] = options.budget_bytes
    _log.info("experts are held", extra=facts)


def _pack(checkpoint: TextCheckpoint, mode: ExpertsMode) -> Pack | None:
    """Return the pack beside a checkpoint; without it only mapped mode cannot go on."""
    try:
        pack = find_pack(checkpoint)
    except CheckpointError as error:
        if mode is ExpertsMode.MAPPED:
            raise
        _log.warning("experts are read from the weight files, for their pack is of no use: %s", error)
        return None
    if pack is None and mode is ExpertsMode.MAPPED:
        raise CheckpointMissing("is not there; pomona pack-experts makes it", file=PACK_FILE)
    return pack
