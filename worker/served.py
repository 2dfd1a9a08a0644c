"""The loaded model as the services use it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pomona.v1 import common_pb2

from worker.adapters.adapters import Adapters
from worker.adapters.lease import NO_ADAPTERS, AdapterLease
from worker.adapters.wanted import WantedAdapter
from worker.errors import DeadlineExceeded, UnsupportedOption
from worker.prompting import Prompter
from worker.steerer import Steerer
from worker.validation import ModelFacts


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a request needs beside the engine.

    Attributes:
        prompter: makes token ids of prompts.
        steerer: prepares what leads outputs.
        facts: bounds and defaults.
        eos_token_ids: every id that ends a text.
        resolved: which model answers, exactly, but for the adapters of a request.
        adapters: those that requests may name; None: it takes none.
    """

    prompter: Prompter
    steerer: Steerer
    facts: ModelFacts
    eos_token_ids: frozenset[int]
    resolved: common_pb2.ResolvedModel
    adapters: Adapters | None = None

    async def lease(self, wanted: Sequence[WantedAdapter], remaining_s: float | None) -> AdapterLease:
        """Hold the adapters of a request.

        Args:
            wanted: in the order of the request.
            remaining_s: until the deadline; None: there is none.

        Raises:
            UnsupportedOption: the model takes none.
            DeadlineExceeded: they could not be mounted in time.
            WorkerError: see `Adapters.lease`.
        """
        if not wanted:
            return NO_ADAPTERS
        if self.adapters is None:
            raise UnsupportedOption("adapters")
        try:
            async with asyncio.timeout(remaining_s):
                return await self.adapters.lease(wanted)
        except TimeoutError:
            raise DeadlineExceeded from None

    def resolve(self, lease: AdapterLease) -> common_pb2.ResolvedModel:
        """Return what answers, exactly."""
        resolved = common_pb2.ResolvedModel()
        resolved.CopyFrom(self.resolved)
        resolved.adapters.extend(lease.resolved)
        return resolved
