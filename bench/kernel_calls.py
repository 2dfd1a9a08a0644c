"""Which native kernels one step calls, and how long each kind of them takes: calls are noted, then made again.

Made again are all of them, in their order, and all but one kind: the difference is what that kind takes where it
stands, behind the others and with what they leave in the caches. The fastest of some rounds count: what else runs on
the machine only ever adds. Keys and values are written to the places where they are already.
"""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from native import dense, kernels, paged

EMPTY_CALLS = 300


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel, and what it was called with."""

    name: str
    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    def again(self) -> Any:
        """Make it again; nothing is computed yet."""
        return self.kernel(*self.arguments, **self.named)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices that a product reads; 0 for another kernel, and for a lookup of rows."""
        if "quantized" not in self.name or "rows" in self.name:
            return 0
        return sum(array.nbytes for array in _arrays(self.arguments[1:]))


@contextmanager
def noted() -> Generator[list[Call]]:
    """Note the calls of native kernels that are made in the block."""
    calls: list[Call] = []
    originals = [
        (module, name, function)
        for module in (kernels, dense, paged)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_") and _makes_array(function)
    ]
    for module, name, function in originals:
        told = name if module is kernels else f"{module.__name__.partition('.')[2]} {name}"
        setattr(module, name, _noting(told, function, calls))
    try:
        yield calls
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def seconds_by_kind(calls: Sequence[Call], rounds: int) -> tuple[float, dict[str, tuple[int, float]]]:
    """Make calls again, all and without each kind.

    Returns:
        The seconds of all; and by name of the kernel how many calls there are, and the seconds that they add.
    """
    counts = Counter(call.name for call in calls)
    samples: dict[str | None, list[float]] = {name: [] for name in (None, *counts)}
    for _ in range(rounds):
        for left_out, found in samples.items():
            outputs = [call.again() for call in calls if call.name != left_out]
            began = time.perf_counter()
            mx.eval(outputs)
            found.append(time.perf_counter() - began)
    fastest = {name: min(found) for name, found in samples.items()}
    whole = fastest[None]
    return whole, {name: (count, max(0.0, whole - fastest[name])) for name, count in counts.items()}


def empty_call_seconds(rounds: int) -> list[float]:
    """Return what a call costs whose kernel has next to nothing to do: MLX's part of each."""
    x, weight = mx.ones((1, 1, 32)), mx.ones((32,))
    mx.eval(x, weight)
    samples: list[float] = []
    for _ in range(rounds):
        outputs = [kernels.rms_norm(x, weight, 1e-5) for _ in range(EMPTY_CALLS)]
        began = time.perf_counter()
        mx.eval(outputs)
        samples.append((time.perf_counter() - began) / EMPTY_CALLS)
    return samples


def _makes_array(function: Callable[..., Any]) -> bool:
    return "mx.array" in str(inspect.signature(function).return_annotation)


def _noting(name: str, function: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(Call(name, function, arguments, named))
        return function(*arguments, **named)

    return call


def _arrays(value: Any) -> list[mx.array]:
    if isinstance(value, mx.array):
        return [value]
    return [array for each in value for array in _arrays(each)] if isinstance(value, tuple | list) else []
