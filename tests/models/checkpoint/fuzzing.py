"""What the fuzz tests share: bytes with a few of them changed, and what a reader makes of them."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from models.checkpoint.errors import CheckpointError

Patches = Sequence[tuple[int, bytes]]


def patches(places: st.SearchStrategy[int]) -> st.SearchStrategy[Patches]:
    """Draw up to six changes: a place, taken modulo the length of the content, and one byte or a number of eight."""
    numbers = st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "little"))
    return st.lists(st.tuples(places, st.binary(min_size=1, max_size=1) | numbers), min_size=1, max_size=6)


def patched(content: bytes, changes: Patches) -> bytes:
    """Return `content` with the changes made, as long as it was."""
    changed = bytearray(content)
    for place, patch in changes:
        start = place % len(content)
        changed[start : start + len(patch)] = patch[: len(content) - start]
    return bytes(changed)


def refusal_of(read: Callable[[], object]) -> CheckpointError | None:
    """Return the checkpoint error that `read` ends with, None where it ends well; any other error is a bug."""
    try:
        read()
    except CheckpointError as error:
        return error
    return None
