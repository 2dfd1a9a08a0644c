"""What a draw is, in float64 and one row at a time: the oracle of the two ways in which it is computed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARGIN = 1e-5  # of mass: closer to a boundary than this, rounding decides


@dataclass(frozen=True)
class Rule:
    """As the columns of `native.sampling.draw`, with a temperature and min_p in place of what they are turned into."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    xtc_threshold: float = 0.5
    top_k: int = 0
    uniform: float = 0.0
    exempt_ids: tuple[int, ...] = ()

    def choice(self, *, needs_normalizer: bool = False) -> list[float]:
        log_min_p = float(np.log(self.min_p)) if self.min_p else -np.inf
        sharpness = 1 / self.temperature if self.temperature else 0.0
        filters = [self.top_p, log_min_p, self.xtc_threshold, self.top_k]
        return [sharpness, *filters, self.uniform, float(needs_normalizer)]


@dataclass(frozen=True)
class Expected:
    """The token, and whether rounding may lead to another."""

    token: int
    is_close: bool


def expected_token(logits: NDArray[np.float32], rule: Rule) -> Expected:
    """Draw from one row."""
    wide = logits.astype(np.float64)
    if not rule.temperature:
        return Expected(int(np.argmax(wide)), is_close=False)
    order = np.lexsort((np.arange(len(wide)), -wide))  # the most probable first, then the smaller id
    probabilities = np.exp(wide - wide.max())
    probabilities /= probabilities.sum()
    kept, is_close = kept_places(wide[order], probabilities[order], rule, order)
    weights = np.zeros(len(wide))
    ids = order[kept]
    weights[ids] = np.exp((wide[ids] - wide[ids].max()) / rule.temperature)
    cumulated = np.cumsum(weights) / weights.sum()
    token = int(np.argmax((cumulated > rule.uniform) & (weights > 0)))
    bounds = np.array([cumulated[token], cumulated[token] - weights[token] / weights.sum()])
    return Expected(token, bool(is_close or np.abs(bounds - rule.uniform).min() < MARGIN))


def kept_places(
    logits: NDArray[np.float64], probabilities: NDArray[np.float64], rule: Rule, ids: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], bool]:
    """Say which of a row's tokens stay, from the most probable one on, and whether that is a close thing."""
    kept, is_close = np.ones(len(logits), bool), False
    if 0 < rule.top_p < 1:
        before = np.cumsum(probabilities) - probabilities
        kept &= before < rule.top_p
        is_close |= bool(np.abs(before - rule.top_p).min() < MARGIN)
    if rule.min_p:
        depth = logits - logits[0]
        kept &= depth >= np.log(rule.min_p)
        is_close |= bool(np.abs(depth - np.log(rule.min_p)).min() < MARGIN)
    likely = kept & (probabilities > rule.xtc_threshold)
    if likely.any() and rule.xtc_threshold < 0.5:
        kept &= (logits <= logits[likely].min()) | np.isin(ids, rule.exempt_ids)
        is_close |= bool(np.abs(probabilities - rule.xtc_threshold).min() < MARGIN * rule.xtc_threshold)
    if rule.top_k:
        kept &= np.cumsum(kept) <= rule.top_k
    return kept, is_close


def random_rule(generator: np.random.Generator, width: int, *, filters: str) -> Rule:
    """Make a rule that uses the filters named, such as "top_p min_p"."""
    uniform = float(generator.integers(1 << 24)) / (1 << 24)
    chosen = filters.split()
    settings = {
        "top_p": float(np.float32(generator.uniform(0.05, 0.999))),
        "min_p": float(np.float32(generator.uniform(0.001, 0.9))),
        "xtc_threshold": float(np.float32(generator.choice([0.0, 0.01, 0.1, 0.3]))),
    }
    filtering = {name: value for name, value in settings.items() if name in chosen}
    top_k = int(generator.integers(1, width + 2)) if "top_k" in chosen else 0
    exempt = tuple(generator.choice(width, 2).tolist())
    temperature = float(generator.choice([0.3, 1.0, 1.7]))
    return Rule(temperature=temperature, uniform=uniform, exempt_ids=exempt, top_k=top_k, **filtering)


def random_logits(generator: np.random.Generator, rows: int, width: int) -> NDArray[np.float32]:
    """Make rows between flat and peaked, of which some hold equal numbers and some minus infinity."""
    logits = generator.standard_normal((rows, width)) * generator.choice([0.5, 2.0, 6.0], (rows, 1))
    coarse = generator.random((rows, 1)) < 0.3
    logits = np.where(coarse, np.round(logits), logits)
    banned = (generator.random((rows, width)) < 0.2) & (generator.random((rows, 1)) < 0.3)
    banned[:, 0] = False
    return np.where(banned, -np.inf, logits).astype(np.float32)
