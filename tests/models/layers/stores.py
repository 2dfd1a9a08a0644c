"""What the tests of stores share: tokens with keys and values of their own, every kind of store, and histories."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np

from models.blocks import BLOCK_TOKENS
from models.checkpoint.kv_scheme import AffineKV, KVScheme, LayerKV, TurboKV
from models.layers.stores.make import store_maker
from models.layers.stores.store import Block, Store

HEADS, WIDTH = 2, 64
MOST_TOKENS = 1200
Numbers = np.ndarray


@dataclass(frozen=True)
class Layer:
    """A layer as the cache describes it."""

    num_kv_heads: int = HEADS
    head_dim: int = WIDTH
    window: int | None = None


def maker(kv: LayerKV | None = None, window: int | None = None, dtype: mx.Dtype = mx.float32) -> Callable[[], Store]:
    """Return what makes empty stores of one kind; None is plain."""
    scheme = KVScheme() if kv is None else KVScheme("turbo" if isinstance(kv, TurboKV) else "affine", kv)
    make = store_maker(scheme, [Layer(window=window)], dtype)
    return lambda: make(0)


# Each as (makes a store, makes one that keeps everything and returns the same bits).
FULL = {
    "full": maker(),
    "affine 8": maker(AffineKV(8)),
    "affine 4, groups of 32": maker(AffineKV(4, 32)),
    "affine 4 from position 96": maker(AffineKV(4, 64, 96)),
    "turbo k8v3": maker(TurboKV(8, 3)),
    "turbo k4v2": maker(TurboKV(4, 2)),
    "turbo k2v5 from position 32": maker(TurboKV(2, 5, 32)),
}
WINDOWS = {f"window {width}": (maker(window=width), FULL["full"]) for width in (1, 2, 32, 33, 50, 300)}
KINDS = {name: (make, make) for name, make in FULL.items()} | WINDOWS


def entries(tokens: Sequence[int], salt: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Return [1, H, T, D], as attention makes it: a transposed view. Each token's numbers are its own."""
    return mx.swapaxes(mx.array(table(salt)[list(tokens)])[None].astype(dtype), 1, 2)


@cache
def table(salt: int) -> Numbers:
    """Return float32 [tokens, H, D]."""
    return np.random.default_rng(salt).normal(size=(MOST_TOKENS, HEADS, WIDTH)).astype(np.float32)


def add(store: Store, tokens: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Add tokens and return all the keys and values that they see."""
    keys, values = store.update(entries(tokens, 1), entries(tokens, 2))
    return np.array(keys), np.array(values)


def same_bits(left: Sequence[Numbers], right: Sequence[Numbers]) -> bool:
    """Return whether arrays are the same, bit for bit."""
    return all(
        a.shape == b.shape and (a.view(np.uint32) == b.view(np.uint32)).all() for a, b in zip(left, right, strict=True)
    )


def parts_of(store: Store, first: int = 0) -> list[Block | None]:
    """Extract every full block from `first` on."""
    return [store.extract(block) for block in range(first, store.length // BLOCK_TOKENS)]


def usable(store: Store, parts: Sequence[Block | None]) -> int:
    """Return how many of the blocks an empty store can start with."""
    counts = range(len(parts), 0, -1)
    return next((n for n in counts if all(parts[block] is not None for block in store.needed(n))), 0)


def run_history(make: Callable[[], Store], make_cold: Callable[[], Store], seed: int) -> None:
    """Do random things with a store; after each update it must return what a cold one returns, bit for bit.

    Raises:
        AssertionError: naming the seed.
    """
    draw = random.Random(seed)
    store, tokens = make(), list[int]()
    last_added, shared, parts = 0, list[int](), list[Block | None]()
    for _ in range(12):
        verb = draw.choice(["add", "add", "add", "trim", "share", "adopt"])
        if verb == "add" and len(tokens) < MOST_TOKENS // 2:
            count = draw.choice([1, 1, 1, 5, 31, 32, 33, 100, 255, 256])
            new = [draw.randrange(MOST_TOKENS) for _ in range(count)]
            start = len(tokens)
            tokens, last_added = tokens + new, count
            check(store, add(store, new), add(make_cold(), tokens), start, seed)
        elif verb == "trim" and last_added:
            dropped = draw.randint(0, last_added)
            store.trim(dropped)
            tokens, last_added = tokens[: len(tokens) - dropped], last_added - dropped
        elif verb == "share":
            held = len(parts) if shared[: len(parts) * BLOCK_TOKENS] == tokens[: len(parts) * BLOCK_TOKENS] else 0
            parts = parts[:held] + parts_of(store, held)
            shared = tokens[: len(parts) * BLOCK_TOKENS]
            if draw.random() < 0.5:
                mx.eval([part for part in parts if part is not None])
        elif verb == "adopt" and parts:
            store.clear()
            count = usable(store, parts[: draw.randint(1, len(parts))])
            store.adopt(count, parts[:count])
            tokens, last_added = shared[: count * BLOCK_TOKENS], 0
        assert store.length == len(tokens), f"seed {seed}: {store.length} tokens, not {len(tokens)}"


def check(store: Store, seen: Sequence[Numbers], cold: Sequence[Numbers], start: int, seed: int) -> None:
    """Compare what an update returned with what a cold store holds."""
    window = getattr(store, "window", None)
    first = 0 if window is None else max(0, start - (window - 1))
    assert window is None or getattr(store, "first", None) == first, f"seed {seed}: another first position"
    assert same_bits(seen, [array[:, :, first:] for array in cold]), f"seed {seed}: other keys or values"
