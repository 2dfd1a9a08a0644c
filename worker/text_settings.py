"""Bounds of a text workload."""

from dataclasses import dataclass, field

from worker.prefixes import PrefixSettings

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
        max_context_tokens: prompt and output together; None: what the checkpoint was trained for.
        kv_bytes: of keys and values of all rows together; None: of every row's whole context, up to 4 GiB.
        prefixes: what earlier prompts leave behind for later ones.
    """

    max_batch_rows: int = 16
    max_queue_requests: int = 64
    prefill_chunk_tokens: int = 512
    max_context_tokens: int | None = None
    kv_bytes: int | None = None
    prefixes: PrefixSettings = field(default_factory=PrefixSettings)

    def context_tokens(self, trained: int | None) -> int:
        """Return how many tokens prompt and output may have together, of a checkpoint trained for so many."""
        bounds = [bound for bound in (self.max_context_tokens, trained) if bound is not None]
        return min(bounds) if bounds else UNKNOWN_CONTEXT_TOKENS

    def kv_tokens(self, context_tokens: int, token_bytes: int) -> int:
        """Return how many tokens' keys and values the rows may hold together; one whole context at least."""
        most = self.max_batch_rows * context_tokens
        kv_bytes = DEFAULT_KV_BYTES if self.kv_bytes is None else self.kv_bytes
        return max(context_tokens, min(most, kv_bytes // token_bytes))
