import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from models.blocks import BLOCK_TOKENS, Part
from tests.worker.prefix_parts import Memory, content, content_of, tokens, usable
from worker.prefix_cache import PrefixCache, _Node

NAMESPACES = ("a", "b")


@dataclass
class Model:
    """What a prefix cache holds, told by a dictionary of whole prefixes; slow and plain."""

    max_bytes: int
    held: dict[tuple[str, tuple[int, ...]], tuple[bytes, int]] = field(default_factory=dict)
    now: int = 0
    aside_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.aside_bytes + sum(len(text) for text, _ in self.held.values())

    def find(self, namespace: str, symbols: tuple[int, ...], max_tokens: int) -> list[bytes]:
        found: list[bytes] = []
        for end in range(1, min(len(symbols), max_tokens // BLOCK_TOKENS) + 1):
            if (namespace, symbols[:end]) not in self.held:
                break
            found.append(self.held[namespace, symbols[:end]][0])
        while found and found[-1][0] % 2:
            found.pop()
        self.use(namespace, symbols[: len(found)])
        return found

    def add(self, namespace: str, symbols: tuple[int, ...], contents: Sequence[bytes], first_block: int) -> None:
        end = first_block
        for end in range(first_block + 1, len(symbols) + 1):
            before = [self.held.get((namespace, symbols[:length])) for length in range(1, end)]
            text = contents[end - 1 - first_block]
            old, _ = self.held.get((namespace, symbols[:end]), (b"", 0))
            fits = sum(len(each[0]) for each in before if each) + len(text) <= self.max_bytes - self.aside_bytes
            if None not in before and fits and len(text) > len(old):
                self.held[namespace, symbols[:end]] = (text, 0)
        if first_block == 0 or (namespace, symbols[:first_block]) in self.held:
            self.use(namespace, symbols)
        self.use(namespace, symbols[:first_block])
        self.shrink(self.max_bytes)

    def use(self, namespace: str, symbols: tuple[int, ...]) -> None:
        self.now += 1
        for end in range(1, len(symbols) + 1):
            if (namespace, symbols[:end]) in self.held:
                self.held[namespace, symbols[:end]] = (self.held[namespace, symbols[:end]][0], self.now)

    def hold(self, contents: Sequence[bytes]) -> list[bytes]:
        kept: list[bytes] = []
        while len(kept) < len(contents) and self.aside_bytes + len(contents[len(kept)]) <= self.max_bytes:
            kept.append(contents[len(kept)])
            self.aside_bytes += len(kept[-1])
        self.shrink(self.max_bytes)
        return kept

    def shrink(self, limit_bytes: int) -> None:
        while self.nbytes > limit_bytes:
            parents = {(namespace, symbols[:-1]) for namespace, symbols in self.held}
            leaves = [key for key in self.held if key not in parents]
            del self.held[min(leaves, key=lambda key: self.held[key][1])]


class History:
    """Does the same random things to a cache and to its model, and compares them after each.

    Prompts have few different blocks, so that they share beginnings and diverge; sizes differ, also for one block.
    """

    def __init__(self, make: Callable[[int], PrefixCache], seed: int) -> None:
        self.random = random.Random(seed)
        self.max_bytes = self.random.choice((0, 7, 40, 100, 400))
        self.memory = Memory()
        self.cache = make(self.max_bytes)
        self.model = Model(self.max_bytes)
        self.aside: list[list[Part]] = []

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.random.choice((self.find, self.find, self.add, self.add, self.add, self.hold, self.let_go))()
            assert self.cache.nbytes == self.memory.nbytes == self.model.nbytes <= self.max_bytes
            assert self.cache.num_blocks == len(self.model.held)
            held = [text for text, _ in self.model.held.values()]
            aside = [content_of(part) for parts in self.aside for part in parts]
            assert sorted(part.content for part in self.memory.alive) == sorted(held + aside)

    def prompt(self) -> tuple[str, tuple[int, ...]]:
        length = self.random.randint(0, 6)
        return self.random.choice(NAMESPACES), tuple(self.random.randint(0, 1) for _ in range(length))

    def find(self) -> None:
        namespace, symbols = self.prompt()
        max_tokens = self.random.randint(0, 6 * BLOCK_TOKENS)
        found = self.cache.find(namespace, tokens(symbols), max_tokens)
        assert [content_of(part) for part in found] == self.model.find(namespace, symbols, max_tokens)

    def add(self) -> None:
        namespace, symbols = self.prompt()
        first = self.random.choice((0, 0, self.random.randint(0, len(symbols))))
        contents = [
            content(namespace, symbols[:end], self.random.choice((1, 8, 8, 8, 20)))
            for end in range(first + 1, len(symbols) + 1)
        ]
        self.cache.add(namespace, tokens(symbols), self.memory.parts(contents), first)
        self.model.add(namespace, symbols, contents, first)

    def hold(self) -> None:
        contents = [bytes(self.random.choice((1, 8, 20))) for _ in range(self.random.randint(0, 3))]
        self.aside.append(self.cache.hold(self.memory.parts(contents)))
        assert [content_of(part) for part in self.aside[-1]] == self.model.hold(contents)

    def let_go(self) -> None:
        parts = self.aside.pop() if self.aside else []
        self.cache.let_go(parts)
        self.model.aside_bytes -= sum(part.nbytes for part in parts)
        for part in parts:
            part.drop()


def whole(max_bytes: int) -> PrefixCache:
    return PrefixCache(max_bytes, usable=usable)


@pytest.mark.parametrize("seed", range(80))
def test_any_history_leaves_what_a_plain_model_says(seed: int):
    History(whole, seed).run(120)


class ForgetsAncestors(PrefixCache):
    def _order(self, path: Sequence[_Node]) -> None:
        super()._order(path[-1:])


class CountsReplacedPartsTwice(PrefixCache):
    def _keep(
        self, namespace: str, path: Sequence[_Node], key: tuple[int, ...], part: Part, path_bytes: int
    ) -> _Node | None:
        before, num_blocks = self.nbytes, self.num_blocks
        node = super()._keep(namespace, path, key, part, path_bytes)
        if self.num_blocks == num_blocks and self.nbytes > before:
            self.nbytes += 1
        return node


class SharesNamespaces(PrefixCache):
    def _walk(self, namespace: str, keys: Sequence[tuple[int, ...]]) -> list[_Node]:
        return super()._walk("a", keys)


class DropsTheLast(PrefixCache):
    def _drop_first(self) -> None:
        self._line.move_to_end(next(reversed(self._line)), last=False)
        super()._drop_first()


class KeepsDuplicates(PrefixCache):
    def add(self, namespace: str, token_ids: Sequence[int], parts: Sequence[Part], first_block: int = 0) -> None:
        known = len(self._walk(namespace, [tuple(token_ids[:BLOCK_TOKENS])])) if first_block == 0 else 0
        super().add(namespace, token_ids, parts[known:], first_block + known)


class ForgetsWhatIsHeldAside(PrefixCache):
    def hold(self, parts: Sequence[Part]) -> list[Part]:
        kept = super().hold(parts)
        self._aside_bytes = 0
        return kept


class CoversTheLastToken(PrefixCache):
    def find(self, namespace: str, token_ids: Sequence[int], max_tokens: int) -> list[Part]:
        return super().find(namespace, token_ids, max_tokens + 1)


@pytest.mark.parametrize(
    "defective",
    [
        ForgetsAncestors,
        CountsReplacedPartsTwice,
        SharesNamespaces,
        DropsTheLast,
        KeepsDuplicates,
        CoversTheLastToken,
        ForgetsWhatIsHeldAside,
    ],
)
def test_the_histories_catch_a_defect(defective: type[PrefixCache]):
    def run_all() -> None:
        for seed in range(80):
            History(lambda max_bytes: defective(max_bytes, usable=usable), seed).run(120)

    with pytest.raises((AssertionError, KeyError)):
        run_all()
