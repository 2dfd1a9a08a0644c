"""What a model's requests leave behind for later ones: the prefix cache beside the cache that its parts belong to."""

import logging
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from importlib.metadata import version

from models.blocks import BLOCK_TOKENS, Part
from models.layers.cache import Cache
from models.registry import LoadedModel
from native import kernels
from worker.prefix_cache import PrefixCache
from worker.prefix_settings import PrefixSettings
from worker.prefix_store import PartCodec, PrefixStore
from worker.row import Row

CLOSE_S = 5.0
# How long an idle moment waits for the disk; a request that comes meanwhile waits as long.
IDLE_WAIT_S = 0.02
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """The first blocks of a row that are not published yet; `is_cut` once there was no room for the next."""

    parts: list[Part] = field(default_factory=list["Part"])
    is_cut: bool = False


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
        self._held: dict[Row, _Held] = {}

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

    def hold(self, row: Row) -> None:
        """Keep the blocks that a chunk of a row's prompt has filled until they are published or dropped.

        Layers that see a window leave behind what they held at the end of a chunk, where others can begin.
        """
        known = self._known
        if known is None or row.sequence.request.cache.is_bypassed:
            return
        held = self._held.setdefault(row, _Held())
        if held.is_cut:
            return
        parts = self._cache.share(row.slot, row.num_published + len(held.parts))
        kept = known.hold(parts)
        held.parts.extend(kept)
        held.is_cut = len(kept) < len(parts)

    def publish(self, row: Row) -> None:
        """Let others begin behind the blocks that a row has filled since the last time.

        To be called when the row was read. Where its last token was drawn behind all that its slot holds, what that
        token looked at are numbers; where it was forced, the next draw will tell.
        """
        request, known = row.sequence.request, self._known
        if known is None or request.cache.is_bypassed or not row.was_drawn:
            return
        num_tokens = len(request.prompt_ids) + len(row.sequence.output_ids)
        num_blocks = min(self._cache.length(row.slot), num_tokens) // BLOCK_TOKENS
        if num_blocks > row.num_published:
            tokens = (*request.prompt_ids, *row.sequence.output_ids)
            parts = self._take_held(known, row)
            parts.extend(self._cache.share(row.slot, row.num_published + len(parts)))
            known.add(request.cache.namespace, tokens, parts, row.num_published)
            row.num_published = num_blocks

    def forget(self, row: Row) -> None:
        """Drop what is held of a row and was not published."""
        if self._known is not None:
            for part in self._take_held(self._known, row):
                part.drop()

    def write_on(self, *, is_idle: bool = False) -> bool:
        """Have the disk take more of what it had no room for; return whether something is left that it may take soon.

        Args:
            is_idle: whether there is nothing else to do than to wait for room.
        """
        return self._known is not None and self._known.write_on(IDLE_WAIT_S if is_idle else 0.0)

    def close(self) -> None:
        """Give everything back; what is on its way to the disk gets there first."""
        ends_at = time.monotonic() + CLOSE_S
        while self.write_on(is_idle=True) and time.monotonic() < ends_at:
            pass
        for row in list(self._held):
            self.forget(row)
        if self._known is not None:
            self._known.clear()
        if self._store is not None and not self._store.close(max(0.0, ends_at - time.monotonic())):
            _log.warning("some prompts were not written to the prefix folder in time")

    def _take_held(self, known: PrefixCache, row: Row) -> list[Part]:
        parts = self._held.pop(row, _Held()).parts
        known.let_go(parts)
        return parts


def _fingerprint(cache: Cache, loaded: LoadedModel) -> str:
    """Return a text that is the same for models whose keys and values are the same numbers."""
    arithmetic = loaded.arithmetic
    computed_by = (arithmetic.name, kernels.instruction_set() if arithmetic.name == "native" else "", version("mlx"))
    words = (loaded.checkpoint.revision, loaded.path.value, loaded.compute_dtype, loaded.device, *computed_by)
    return "|".join((*words, version("pomona"), cache.fingerprint))
