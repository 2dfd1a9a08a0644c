"""Bounds of a text workload; plain Python."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from models.checkpoint.kv_sizes import KVSizes
from worker.errors import ModelLoadFailed
from worker.prefix_settings import PrefixSettings

UNKNOWN_CONTEXT_TOKENS = 2048  # where neither the settings nor the checkpoint say
# Where the settings do not say: room for one whole context at least, and for all rows where that is no more than this.
DEFAULT_KV_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Bounds of a text workload.

    Attributes:
        max_batch_rows: sequences that run at once.
        max_queue_requests: sequences that may wait besides.
        prefill_chunk_tokens: of prompts in one step on the fast path; the reference path always takes 2,048.
        prefill_gap_s: how long prompts may hold up running rows between two of their steps; on the fast path chunks
            are cut to it.
        max_context_tokens: prompt and output together; None: what the checkpoint was trained for.
        kv_bytes: of keys and values of all rows together; None: of every row's whole context, up to 4 GiB.
        prefixes: what earlier prompts leave behind for later ones.
    """

    max_batch_rows: int = 16
    max_queue_requests: int = 64
    prefill_chunk_tokens: int = 512
    prefill_gap_s: float = 0.25
    max_context_tokens: int | None = None
    kv_bytes: int | None = None
    prefixes: PrefixSettings = field(default_factory=PrefixSettings)

    def context_tokens(self, trained: int | None) -> int:
        """Return how many tokens prompt and output may have together, of a checkpoint trained for so many."""
        bounds = [bound for bound in (self.max_context_tokens, trained) if bound is not None]
        return min(bounds) if bounds else UNKNOWN_CONTEXT_TOKENS

    def fitting(self, context_tokens: int, sizes: KVSizes) -> "TextSettings":
        """Return the same with no more rows than `kv_bytes` has room for, where each takes some however short it is.

        Args:
            context_tokens: prompt and output of one row, which has room in any case.
            sizes: of what rows keep.
        """
        if not sizes.row_bytes:
            return self
        left = self._kv_bytes - sizes.rows_bytes(context_tokens, 1)
        num_rows = 1 + max(0, left) // sizes.row_bytes
        return replace(self, max_batch_rows=min(self.max_batch_rows, num_rows))

    def kv_tokens(self, context_tokens: int, rows_bytes: Callable[[int, int], int]) -> int:
        """Return how many tokens' keys and values the rows may hold together; one whole context at least.

        Args:
            context_tokens: prompt and output of one row.
            rows_bytes: what so many tokens of so many rows take together; it grows with both.

        Raises:
            ModelLoadFailed: `kv_bytes` is set and has no room for one.
        """
        needed = rows_bytes(context_tokens, 1)
        if self.kv_bytes is not None and self.kv_bytes < needed:
            problem = f"kv_bytes is {self.kv_bytes}, and one context of {context_tokens} tokens takes {needed}"
            raise ModelLoadFailed(problem, option="kv_bytes")
        kv_bytes = self._kv_bytes
        counts = range(context_tokens + 1, self.max_batch_rows * context_tokens + 1)
        return context_tokens + bisect_right(counts, kv_bytes, key=lambda count: rows_bytes(count, self.max_batch_rows))

    @property
    def _kv_bytes(self) -> int:
        return DEFAULT_KV_BYTES if self.kv_bytes is None else self.kv_bytes
