"""What a model's requests leave behind for later ones: the prefix cache beside the cache that its parts belong to."""

import logging
from collections.abc import Sequence as Items
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from models.blocks import BLOCK_TOKENS, Part
from models.layers.cache import Cache
from models.registry import LoadedModel
from native import kernels
from worker.prefix_cache import PrefixCache
from worker.prefix_store import PartCodec, PrefixStore
from worker.row import Row

CLOSE_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """Bounds of what is kept.

    Attributes:
        max_bytes: of keys and values in memory; 0: none are kept.
        folder: where they outlive the process; None: nowhere.
        folder_max_bytes: of that folder.
    """

    max_bytes: int = 512 << 20
    folder: Path | None = None
    folder_max_bytes: int = 8 << 30


class Prefixes:
    """Lets sequences begin behind what is known of their prompts.

    Args:
        settings: bounds.
        cache: whose parts are kept.
        loaded: the model that computed them.
    """

    def __init__(self, settings: PrefixSettings, cache: Cache, loaded: LoadedModel) -> None:
        self._cache = cache
        self._store = None
        if settings.folder is not None and settings.max_bytes:
            codec = PartCodec(_fingerprint(cache, loaded), cache.write, cache.read)
            self._store = PrefixStore(settings.folder, settings.folder_max_bytes, codec)
        self._known = (
            PrefixCache(settings.max_bytes, usable=cache.usable, store=self._store) if settings.max_bytes else None
        )

    @property
    def nbytes(self) -> int:
        """Bytes kept in memory."""
        return 0 if self._known is None else self._known.nbytes

    @property
    def evictions_total(self) -> int:
        """Blocks that had to go for others."""
        return 0 if self._known is None else self._known.evictions_total

    def find(self, row: Row) -> list[Part] | None:
        """Return the blocks that a row's prompt can begin behind, to be adopted at once; never all of the prompt.

        None: more are on the disk, where reading goes on when it is asked again.
        """
        request, known = row.sequence.request, self._known
        if known is None or request.cache.is_bypassed:
            return []
        parts = known.find(request.cache.namespace, request.prompt_ids, len(request.prompt_ids) - 1)
        # Prompts that drive each other's blocks out of memory would read for ever.
        if known.has_more and known.reached_blocks > row.num_reached:
            row.num_reached = known.reached_blocks
            return None
        return parts

    def adopt(self, row: Row, parts: Items[Part]) -> int:
        """Let a row with an empty slot begin behind blocks of its prompt; return how many tokens they are."""
        most = (len(row.sequence.request.prompt_ids) - 1) // BLOCK_TOKENS
        parts = parts[: self._cache.usable(parts[:most])]
        if parts:
            self._cache.adopt(row.slot, parts)
        row.num_published = len(parts)
        return len(parts) * BLOCK_TOKENS

    def publish(self, row: Row) -> None:
        """Let others begin behind the blocks that a row has filled since the last time."""
        request = row.sequence.request
        if self._known is None or request.cache.is_bypassed:
            return
        num_blocks = self._cache.length(row.slot) // BLOCK_TOKENS
        if num_blocks > row.num_published:
            tokens = (*request.prompt_ids, *row.sequence.output_ids)
            parts = self._cache.share(row.slot, row.num_published)
            self._known.add(request.cache.namespace, tokens, parts, row.num_published)
            row.num_published = num_blocks

    def close(self) -> None:
        """Give everything back; what is on its way to the disk gets there first."""
        if self._known is not None:
            self._known.clear()
        if self._store is not None and not self._store.close(CLOSE_S):
            _log.warning("some prompts were not written to the prefix folder in time")


def _fingerprint(cache: Cache, loaded: LoadedModel) -> str:
    """Return a text that is the same for models whose keys and values are the same numbers."""
    arithmetic = loaded.arithmetic
    computed_by = (arithmetic.name, kernels.instruction_set() if arithmetic.name == "native" else "", version("mlx"))
    words = (loaded.checkpoint.revision, loaded.path.value, loaded.compute_dtype, loaded.device, *computed_by)
    return "|".join((*words, version("pomona"), cache.fingerprint))
