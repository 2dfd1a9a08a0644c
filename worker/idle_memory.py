"""Memory that nothing uses just now: how much MLX keeps of it, and giving it back."""

import mlx.core as mx

import native
from models.layers.cache import Cache
from models.registry import LoadedModel

# Freed arrays that MLX keeps for the next ones. A recorded forward frees and takes arrays of all sizes in turn, and the
# C library finds memory for them as fast (no difference was measured): more would only be held for nothing.
MLX_POOL_BYTES = 1 << 20


def bound_pool(loaded: LoadedModel) -> None:
    """Have MLX keep little of what is freed, where a model's forward is recorded."""
    if loaded.arithmetic.name == "native":
        mx.set_cache_limit(MLX_POOL_BYTES)


def give_back(cache: Cache) -> None:
    """Give back to the system what idling needs no memory for."""
    cache.trim()
    mx.clear_cache()
    native.release_freed()
