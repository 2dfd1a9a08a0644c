"""Whether a fused folder answers as the model does with the adapter mounted.

Logits over a text are compared: how far the fused model is from the mounted one, as a share of how far the mounted one
is from the model without the adapter. What would silently answer as the model alone has a share of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from models.adapters.adapter import Adapter
from models.checkpoint.checkpoint import open_checkpoint
from models.fusing.errors import FuseDiffers
from models.registry import LoadedModel, load
from models.step import AdapterUse, NumericPath, RowPlan, StepPlan

# The share of the adapter's effect by which a fused model may be off.
MAX_SHARE = 0.25
MAX_TOKENS = 48
TEXT = (
    "The sky is blue because air scatters the short waves of sunlight more than the long ones. "
    "Question: what is the capital of France? Answer: it is Paris, a city of two million people on the Seine. "
    "def add(a, b): return a + b. 12 + 30 = 42."
)

Logits = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a fused model's logits lie.

    Attributes:
        effect: root of the mean square of what the mounted adapter changes.
        difference: the same of what lies between fused and mounted.
        num_tokens: at how many places.
        num_agreeing: at how many of these both find the same token the likeliest.
    """

    effect: float
    difference: float
    num_tokens: int
    num_agreeing: int

    @property
    def share(self) -> float:
        """The difference by the effect; 0 where neither is anything."""
        if self.effect == 0:
            return 0.0 if self.difference == 0 else float("inf")
        return self.difference / self.effect

    def check(self) -> None:
        """Refuse what is too far off.

        Raises:
            FuseDiffers: more than `MAX_SHARE` of the effect.
        """
        if not self.share <= MAX_SHARE:
            words = f"{self.share:.0%} of what the adapter changes" if np.isfinite(self.share) else "no number"
            problem = f"what was made is off by {words}, and {MAX_SHARE:.0%} are allowed"
            raise FuseDiffers(problem, effect=f"{self.effect:g}", difference=f"{self.difference:g}")


def compare(base: tuple[Logits, Logits], fused: Logits) -> Comparison:
    """Compare logits [N, V] of the model alone and with the adapter with those of what was made."""
    plain, mounted = base
    agreeing = int((mounted.argmax(-1) == fused.argmax(-1)).sum())
    return Comparison(_distance(mounted, plain), _distance(fused, mounted), len(fused), agreeing)


def logits_of_mounted(folder: Path, adapter: Adapter) -> tuple[Logits, Logits]:
    """Load a model and return its logits over the text: alone, and with an adapter mounted; raises as a load."""
    loaded = _load(folder)
    bank = loaded.adapters
    if bank is None:
        raise FuseDiffers("the model takes no adapters")
    plain = _logits(loaded)
    return plain, _logits(loaded, AdapterUse(bank.mount(adapter)))


def logits_of(folder: Path) -> Logits:
    """Load a model and return its logits over the text; raises as a load."""
    return _logits(_load(folder))


def _load(folder: Path) -> LoadedModel:
    mx.clear_cache()
    return load(open_checkpoint(folder), NumericPath.FAST, lambda _: None)


def _logits(loaded: LoadedModel, *uses: AdapterUse) -> Logits:
    """Return float32 [N, V]."""
    tokens = tuple(loaded.tokenizer.encode(TEXT, add_special_tokens=True)[:MAX_TOKENS])
    cache = loaded.make_cache(1)
    step = cache.begin(StepPlan((RowPlan(0, tokens, 0, tuple(range(len(tokens))), uses),)))
    if loaded.adapters is not None:
        loaded.adapters.serve(step)
    logits = loaded.model.head(step.select(loaded.model.hidden(step)))[0]
    numbers: Logits = np.array(logits.astype(mx.float32))  # pyright: ignore[reportUnknownVariableType]
    return numbers


def _distance(one: Logits, other: Logits) -> float:
    return float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other))))
