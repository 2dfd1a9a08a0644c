"""Slots that hold arrays which threads read from files, a fixed number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import native

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import mlx.core as mx

# What becomes of numbers on their way: both others make float32 of them, exactly.
Conversion: TypeAlias = Literal["none", "from_bfloat16", "from_float16"]
# Region, file, offset in it, bytes there, and what becomes of the numbers.
Segment: TypeAlias = tuple[int, int, int, int, Conversion]
SlotState: TypeAlias = Literal["idle", "loading", "ready", "leased"]
Arrival: TypeAlias = Literal["ready", "failed", "cancelled", "stale", "waiting"]


class Slab:
    """Slots that are filled from files: a region of memory for each kind of array, with one place a slot.

    Each filling of a slot has a generation, so that who waits for it, leases it or gives it up means no later one. MLX
    does not know that the arrays change: who computes with a slot leases it until the result is evaluated.

    Args:
        num_slots: 1 or more.
        num_threads: that read, 1 to 64; they start with the first filling.
        bypasses_cache: whether what is read stays out of the system's cache: by O_DIRECT or F_NOCACHE, or where a file
            system knows neither by dropping the pages.

    Raises:
        ReadRejected: a number is out of its range.
        NativeError: the extension is not there or cannot be imported.
    """

    def __init__(self, num_slots: int, *, num_threads: int = 4, bypasses_cache: bool = True) -> None:
        self._slab = native.extension().Slab(num_slots, num_threads, bypasses_cache)

    def add_region(self, shape: Sequence[int], dtype: mx.Dtype) -> int:
        """Add a region of zeros, whose memory is taken from the system as slots are filled.

        Args:
            shape: of one slot's array.
            dtype: of it.

        Returns:
            The region's number.

        Raises:
            ShapeRejected: a dimension is less than 1 or too large.
            MemoryUnshared: MLX copies memory on this device (CUDA).
            MemoryError: the system has no range of addresses so large.
        """
        return self._slab.add_region(list(shape), dtype)

    def array(self, region: int) -> mx.array:
        """Return the array [slots, ...] of a region, in whose memory the slots are; it outlives the slab.

        Raises:
            ReadRejected: there is no such region.
        """
        return self._slab.array(region)

    @property
    def num_bytes(self) -> int:
        """Bytes that all regions take once every slot was filled, and those that threads read through."""
        return self._slab.num_bytes

    def open(self, path: str | os.PathLike[str]) -> int:
        """Open a file for as long as the slab is open, and return its number.

        Raises:
            FileUnopened: it cannot be opened, or is no regular file.
        """
        return self._slab.open(path)

    def fill(self, slot: int, reads: Sequence[Sequence[Segment]]) -> int:
        """Have a slot filled; what it holds is not to be used any more.

        Args:
            slot: neither leased nor being filled.
            reads: each is done by one thread, and has 1 to 8 segments; a segment is all of a region's place.

        Returns:
            The generation.

        Raises:
            SlotBusy: the slot is leased or being filled.
            ReadRejected: something is out of its range, or the slab is closed.
        """
        return self._slab.fill(slot, reads)

    def wait(self, slot: int, generation: int, longest_s: float) -> tuple[Arrival, int]:
        """Wait until a slot is filled.

        Args:
            slot: which one.
            generation: of the filling.
            longest_s: seconds.

        Returns:
            How it ended, and the system's error number where it failed: ENODATA where a file ends before. "waiting":
            it has not ended; "stale": the slot has been filled anew since.

        Raises:
            ReadRejected: there is no such slot.
        """
        return self._slab.wait(slot, generation, int(longest_s * 1000))

    def lease(self, slot: int, generation: int) -> None:
        """Keep what a slot holds until it is released as often as it was leased.

        Raises:
            SlotStale: it is not filled, or anew.
            ReadRejected: there is no such slot.
        """
        self._slab.lease(slot, generation)

    def release(self, slot: int, generation: int) -> None:
        """Give a lease back.

        Raises:
            SlotStale: there is none.
            ReadRejected: there is no such slot.
        """
        self._slab.release(slot, generation)

    def cancel(self, slot: int, generation: int) -> None:
        """Give a filling up; the slot is loading until a read that is under way has ended.

        Raises:
            ReadRejected: there is no such slot.
        """
        self._slab.cancel(slot, generation)

    def state(self, slot: int) -> SlotState:
        """Return what a slot is.

        Raises:
            ReadRejected: there is no such slot.
        """
        return self._slab.state(slot)

    def close(self) -> None:
        """Give up what is being read, end the threads and close the files; a second call does nothing.

        A thread that hangs in a read is left behind after five seconds.
        """
        self._slab.close()
