"""Parts of a prefix cache that know what they hold and who owns them, without a device."""

import contextlib
import hashlib
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from models.blocks import BLOCK_TOKENS, Part
from worker.prefix_cache import PrefixCache
from worker.prefix_store import PartCodec, PrefixStore

NO_LIMIT = 1 << 40


class DroppedTwice(AssertionError):
    """Raised when a share is given back that was given back before."""


@dataclass(eq=False)
class Memory:
    """All parts that were made and not yet dropped."""

    alive: set["Held"] = field(default_factory=set["Held"])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.alive)

    def part(self, content: bytes) -> "Held":
        part = Held(self, content)
        self.alive.add(part)
        return part

    def parts(self, contents: Iterable[bytes]) -> list["Held"]:
        return [self.part(content) for content in contents]

    def codec(self, fingerprint: str = "weights 1") -> PartCodec:
        return PartCodec(fingerprint, content_of, self._read)

    def _read(self, payload: bytes) -> "Held":
        if payload.startswith(b"foreign"):
            raise ValueError
        return self.part(payload)


@dataclass(eq=False)
class Held:
    """One part; the first byte of its content says whether a sequence can start after it (an even one) or not."""

    memory: Memory
    content: bytes

    @property
    def nbytes(self) -> int:
        return len(self.content)

    def drop(self) -> None:
        if self not in self.memory.alive:
            raise DroppedTwice
        self.memory.alive.remove(self)


def content_of(part: Part) -> bytes:
    assert isinstance(part, Held)
    return part.content


def usable(parts: Sequence[Part]) -> int:
    """Return how many parts lead to the last after which a sequence can start."""
    return max((index for index, part in enumerate(parts, 1) if content_of(part)[0] % 2 == 0), default=0)


def block(symbol: int) -> tuple[int, ...]:
    """Return the tokens of a block that differs from another's in its last token only."""
    return (*range(BLOCK_TOKENS - 1), symbol)


def tokens(symbols: Iterable[int]) -> list[int]:
    return [token for symbol in symbols for token in block(symbol)]


def content(namespace: str, symbols: Sequence[int], num_bytes: int) -> bytes:
    """Return what the last of these blocks holds: bytes that no other block, beginning or namespace has."""
    seed = hashlib.sha256(repr((namespace, tuple(symbols))).encode()).digest()
    return (seed * (num_bytes // len(seed) + 1))[:num_bytes]


@contextlib.contextmanager
def writer_held(store: PrefixStore) -> Generator[None]:
    """Let nothing be written for the time being."""
    assert store.drain(5)
    is_over = threading.Event()
    store._writer.add(lambda: _wait(is_over))
    yield
    is_over.set()


def _wait(is_over: threading.Event) -> None:
    is_over.wait(30)


def add(cache: PrefixCache, memory: Memory, symbols: Sequence[int], num_bytes: int = 10, namespace: str = "a") -> None:
    """Add all blocks of a sequence; equal ones get equal contents."""
    contents = [content(namespace, symbols[:end], num_bytes) for end in range(1, len(symbols) + 1)]
    cache.add(namespace, tokens(symbols), memory.parts(contents))


def num_found(cache: PrefixCache, symbols: Sequence[int], namespace: str = "a") -> int:
    """Return how many blocks of a sequence are found."""
    return len(cache.find(namespace, tokens(symbols), NO_LIMIT))
