"""A disk that fails now and then costs blocks on disk and nothing else, and gets them once it works again."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.worker.prefix_parts import NO_LIMIT, Memory, add, content, content_of, num_found, tokens, usable
from worker.prefix_cache import MAX_UNWRITTEN_PATHS, PrefixCache
from worker.prefix_store import PAUSE_S, PrefixStore

NUM_SEEDS = 60
PROMPTS = [tuple(int(digit) for digit in f"{number:05b}") for number in range(32)]


class FailingStore(PrefixStore):
    """Fails to write a block every so often.

    Args:
        folder: of the files.
        dice: say when.
        memory: of its parts.
    """

    def __init__(self, folder: Path, dice: random.Random, memory: Memory) -> None:
        self.now = 0.0
        self.failure = dice.choice([0.1, 0.5])
        self.dice = random.Random(dice.random())
        waiting_bytes = dice.choice([20, 60, 1000])
        super().__init__(folder, NO_LIMIT, memory.codec(), max_waiting_bytes=waiting_bytes, clock=lambda: self.now)

    def _add_file(self, name: bytes, pieces: Sequence[bytes]) -> None:
        if self.dice.random() < self.failure:
            raise OSError
        super()._add_file(name, pieces)


class History:
    """Uses a cache whose disk fails, and looks at it after each use."""

    def __init__(self, folder: Path, seed: int, make: type[FailingStore] = FailingStore) -> None:
        self.dice, self.memory, self.folder = random.Random(seed), Memory(), folder
        self.store = make(folder, self.dice, self.memory)
        self.cap = self.dice.choice([40, 100, 400])
        self.cache = PrefixCache(self.cap, usable=usable, store=self.store, max_read_bytes=30)

    def run(self) -> None:
        for _ in range(100):
            self.store.now += self.dice.choice([0, 0, 1, PAUSE_S + 1])
            prompt = self.dice.choice(PROMPTS)[: self.dice.randint(0, 5)]
            self.dice.choice([self.add, self.add, self.find, self.write_on])(prompt)
            assert self.cache.nbytes == self.memory.nbytes <= self.cap
            assert len(self.cache._unwritten) <= MAX_UNWRITTEN_PATHS

    def add(self, prompt: tuple[int, ...]) -> None:
        add(self.cache, self.memory, prompt)

    def find(self, prompt: tuple[int, ...]) -> None:
        found = self.cache.find("a", tokens(prompt), NO_LIMIT)
        assert [content_of(part) for part in found] == [
            content("a", prompt[: end + 1], 10) for end in range(len(found))
        ]

    def write_on(self, prompt: tuple[int, ...]) -> None:
        self.cache.write_on(self.dice.choice([0, 0.001]))

    def heal(self) -> None:
        """Let the disk work again and use what is held."""
        self.store.drain(5)
        self.store.failure, self.store.now = 0.0, self.store.now + 2 * PAUSE_S
        held = {prompt: len(self.cache._walk("a", _keys(prompt))) for prompt in PROMPTS}
        for prompt, num_blocks in held.items():
            self.cache._use(self.cache._walk("a", _keys(prompt[:num_blocks])))
            while self.cache.write_on(0.01):
                pass
        self.cache.clear()
        assert (self.cache.nbytes, self.memory.nbytes) == (0, 0)
        assert self.store.close(5)
        reader = PrefixCache(NO_LIMIT, store=PrefixStore(self.folder, NO_LIMIT, Memory().codec()))
        for prompt, num_blocks in held.items():
            assert num_found(reader, prompt) >= num_blocks, "a block never got to the disk"


def _keys(prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(tokens([symbol])) for symbol in prompt]


def test_a_failing_disk_leaves_the_cache_right_and_gets_all_when_it_works_again(tmp_path: Path):
    for seed in range(NUM_SEEDS):
        print(f"seed {seed}")
        history = History(tmp_path / str(seed), seed)
        history.run()
        history.heal()


class ForgetsThatItFailed(FailingStore):
    def _write(self, name: bytes, token_ids: Sequence[int], payload: bytes, write: object) -> None:
        super()._write(name, token_ids, payload, write)  # pyright: ignore[reportArgumentType]
        write.has_failed = False  # pyright: ignore[reportAttributeAccessIssue]


def test_a_defect_is_found(tmp_path: Path):
    def run_all() -> None:
        for seed in range(NUM_SEEDS):
            history = History(tmp_path / str(seed), seed, ForgetsThatItFailed)
            history.run()
            history.heal()

    with pytest.raises(AssertionError, match="never got to the disk"):
        run_all()
