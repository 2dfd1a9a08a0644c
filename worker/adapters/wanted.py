"""What a request asks for of adapters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pomona.v1 import common_pb2

from models.adapters.names import MAX_NAME_CHARS
from worker.errors import InvalidField

# Of one request.
MAX_ADAPTERS = 8
MAX_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """An adapter by name, and what multiplies its own scale."""

    name: str
    scale: float = 1.0


def read_adapters(uses: Iterable[common_pb2.AdapterUse]) -> tuple[WantedAdapter, ...]:
    """Read the adapters of a request, in their order; several may be the same.

    Raises:
        InvalidField: they are too many, or one has no name, one that is too long, or a scale that is out of range.
    """
    wanted: list[WantedAdapter] = []
    for index, use in enumerate(uses):
        if index == MAX_ADAPTERS:
            raise InvalidField("adapters", f"at most {MAX_ADAPTERS} adapters")
        if not 1 <= len(use.adapter) <= MAX_NAME_CHARS:
            raise InvalidField(f"adapters[{index}].adapter", f"a name of 1 to {MAX_NAME_CHARS} characters")
        scale = use.scale if use.HasField("scale") else 1.0
        if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
            raise InvalidField(f"adapters[{index}].scale", f"from -{MAX_SCALE:g} to {MAX_SCALE:g}")
        wanted.append(WantedAdapter(use.adapter, scale))
    return tuple(wanted)
