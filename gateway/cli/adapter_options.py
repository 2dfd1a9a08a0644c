"""Options of the adapters that a request is answered with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import common_pb2, generation_pb2

from gateway.cli.failures import UsageError

MAX_ADAPTERS = 8
MAX_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """LoRA adapters that are added to the model, in order."""

    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SCALE]",
            help="Answer with this adapter of the model, times SCALE (1); several are summed. None: the model itself.",
        ),
    ] = None

    def apply(self, request: generation_pb2.StreamGenerateRequest) -> None:
        """Write what is set into a request's envelope.

        Raises:
            UsageError: they are too many, or one has no name or no scale that can be.
        """
        request.adapters.extend(read_uses(self.adapter or [], "--adapter"))


def read_uses(texts: Sequence[str], where: str) -> list[common_pb2.AdapterUse]:
    """Read adapters as NAME or NAME:SCALE.

    Args:
        texts: in the order in which they are summed.
        where: they were given, for errors.

    Raises:
        UsageError: they are too many, or one has no name or no scale that can be.
    """
    if len(texts) > MAX_ADAPTERS:
        raise UsageError(f"{where}: at most {MAX_ADAPTERS}")
    return [_use(text, where) for text in texts]


def _use(text: str, where: str) -> common_pb2.AdapterUse:
    name, colon, scale = text.partition(":")
    if not name:
        raise UsageError(f"{where}: {text!r} names no adapter")
    return common_pb2.AdapterUse(adapter=name, scale=_scale(text, scale, where) if colon else None)


def _scale(text: str, scale: str, where: str) -> float:
    try:
        value = float(scale)
    except ValueError:
        value = math.nan
    if not abs(value) <= MAX_SCALE:
        raise UsageError(f"{where}: {text!r} has no scale from {-MAX_SCALE:g} to {MAX_SCALE:g} behind its colon")
    return value
