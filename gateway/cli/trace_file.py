"""Reads a trace of experts: a line for each choice of a router, as workers write them where `expert_trace` is set.

Each line is an object in JSON. The first has `meta`, the format's name; the others `c`, a running number, `l`, the
layer, `s`, the shape [1, N, k] of what the router chose for N tokens, and `i`, the N * k ids of the experts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gateway.cli.failures import UsageError

META = "mlx-bun-expert-trace-v1"
# Of a prompt of 400,000 tokens in one step, with 8 experts each.
MAX_LINE_CHARS = 16 << 20


@dataclass(frozen=True, slots=True)
class RouterChoice:
    """What one layer's router chose in one step.

    Attributes:
        layer: from 0.
        num_chosen: experts of each token.
        ids: of experts, token by token.
    """

    layer: int
    num_chosen: int
    ids: list[int]


def read_trace(file: Path) -> Iterator[RouterChoice]:
    """Yield the choices of a trace in their order; a last line that was not written to its end is left out.

    Raises:
        UsageError: the file cannot be read or is no trace; it names the line.
    """
    try:
        with os.fdopen(_opened(file), "r", encoding="utf-8") as stream:
            if not _is_head(stream.readline(MAX_LINE_CHARS)):
                raise UsageError(f"{file}: it is no trace of experts, which a model writes that has expert_trace set")
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_CHARS), ""), start=2):
                choice = _choice(line)
                if choice is not None:
                    yield choice
                elif line.endswith("\n") or len(line) >= MAX_LINE_CHARS:
                    raise UsageError(f"{file}: line {number} is no choice of a router")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{file}: {reason}") from error


def _opened(file: Path) -> int:
    """Open a file without waiting: a pipe that nobody writes to has no lines."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


def _is_head(line: str) -> bool:
    found = _object(line)
    return found is not None and found.get("meta") == META


def _choice(line: str) -> RouterChoice | None:
    found = _object(line) or {}
    layer: Any = found.get("l")
    shape: Any = found.get("s")
    ids: Any = found.get("i")
    if not (_is_count(layer) and _are_counts(shape) and _are_counts(ids)):
        return None
    if len(shape) != 3 or shape[2] < 1 or shape[0] * shape[1] * shape[2] != len(ids):
        return None
    return RouterChoice(layer, shape[2], ids)


def _object(line: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_count, cast("list[Any]", values)))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 16
