"""What is promised to a sequence is there, whatever others hold, share, lend and leave behind."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import pytest

from models.blocks import BLOCK_TOKENS, BlockPool
from models.errors import BlocksExhausted
from models.layers import block_group
from models.layers.block_group import NO_BLOCK, BlockGroup
from models.layers.cache import AttentionLayer

NUM_SLOTS = 3
STEP_TOKENS = 64
ROW_BLOCKS, PART_BLOCKS = 20, 10


class Unkept(AssertionError):
    """Raised with the seed that shows it."""


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_group, "MAX_STEP_TOKENS", STEP_TOKENS)


def group(window: int | None, make: Callable[..., BlockGroup] = BlockGroup) -> BlockGroup:
    num_blocks = ROW_BLOCKS + PART_BLOCKS
    tables: list[list[int]] = [[] for _ in range(NUM_SLOTS)]
    layer = AttentionLayer(1, 1, 1, 1.0, window)
    return make(layer, mx.zeros((num_blocks, 1)), BlockPool(num_blocks), ROW_BLOCKS, tables, [0] * NUM_SLOTS)


def take(subject: BlockGroup, blocks: list[int]) -> list[int]:
    for block in blocks:
        if block != NO_BLOCK:
            subject.blocks.share(block)
    return blocks


def drop(subject: BlockGroup, blocks: list[int], *, is_lent: bool = False) -> None:
    for block in blocks:
        if block != NO_BLOCK:
            if is_lent:
                subject.take_back(block)
            subject.give_back(block)


@dataclass
class Life:
    """Sequences that start behind each other's blocks, grow, and end, as the seed decides; parts keep to their cap."""

    seed: int
    subject: BlockGroup
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    parts: list[list[int]] = field(default_factory=list[list[int]])
    loans: list[list[int]] = field(default_factory=list[list[int]])
    num_grown: int = 0
    num_lent: int = 0

    def run(self, num_steps: int) -> None:
        self.dice = random.Random(self.seed)
        actions = (self.start, self.grow, self.grow, self.grow, self.share, self.lend, self.drop_loan, self.end)
        try:
            for _ in range(num_steps):
                self.dice.choice(actions)()
                self.check()
        except (AssertionError, BlocksExhausted) as error:
            raise Unkept(f"seed {self.seed}: {error!r}") from error

    def check(self) -> None:
        subject = self.subject
        for_rows = {block for blocks in [*subject.tables, *self.loans] for block in blocks} - {NO_BLOCK}
        assert len(for_rows) + sum(subject.promised) <= ROW_BLOCKS, "more is spoken for than there is for sequences"
        assert subject.blocks.num_free >= subject.blocks.num_promised == sum(subject.promised), "a promise is not kept"
        used = {block for table in subject.tables for block in table}
        used |= {block for blocks in [*self.parts, *self.loans] for block in blocks}
        assert subject.blocks.num_held == len(used - {NO_BLOCK}), "a block is held by nobody"
        assert subject.lent.keys() == {block for loan in self.loans for block in loan} - {NO_BLOCK}

    def start(self) -> None:
        slots = [slot for slot in range(NUM_SLOTS) if slot not in self.lengths]
        if not slots:
            return
        slot = slots[0]
        known = self.dice.choice([[], *self.loans, *self.parts])
        first = self.subject.first_seen(len(known) * BLOCK_TOKENS)
        if NO_BLOCK in known[first:]:
            known = []
        end = len(known) * BLOCK_TOKENS + self.dice.randint(1, 200)
        self.subject.adopt(slot, known)
        if self.subject.promise(slot, max(0, self.subject.needed(end) - self.subject.held(slot))):
            self.lengths[slot], self.ends[slot] = len(known) * BLOCK_TOKENS, end
        else:
            self.subject.clear(slot)

    def grow(self) -> None:
        slots = [slot for slot, length in self.lengths.items() if length < self.ends[slot]]
        if not slots:
            return
        slot = self.dice.choice(slots)
        length = min(self.ends[slot], self.lengths[slot] + self.dice.choice([1, 20, STEP_TOKENS]))
        self.subject.grow(slot, length)
        self.subject.leave_behind(slot, length)
        self.lengths[slot] = length
        self.num_grown += 1

    def share(self) -> None:
        if blocks := self.full_blocks():
            self.parts.append(take(self.subject, blocks))
        while sum(map(len, self.parts)) > PART_BLOCKS:
            drop(self.subject, self.parts.pop(0))

    def lend(self) -> None:
        slots = list(self.lengths)
        slot = self.dice.choice(slots) if slots else 0
        num_blocks = self.lengths.get(slot, 0) // BLOCK_TOKENS
        if num_blocks and self.subject.can_lend(slot, num_blocks):
            self.loans.append(take(self.subject, self.subject.tables[slot][:num_blocks]))
            for block in self.loans[-1]:
                if block != NO_BLOCK:
                    self.subject.lend(block)
            self.num_lent += 1

    def drop_loan(self) -> None:
        if self.loans and self.dice.random() < 0.3:
            drop(self.subject, self.loans.pop(self.dice.randrange(len(self.loans))), is_lent=True)

    def end(self) -> None:
        ended = [slot for slot, length in self.lengths.items() if length == self.ends[slot]]
        if ended:
            self.subject.clear(ended[0])
            del self.lengths[ended[0]], self.ends[ended[0]]

    def full_blocks(self) -> list[int]:
        slots = list(self.lengths)
        slot = self.dice.choice(slots) if slots else 0
        return self.subject.tables[slot][: self.lengths.get(slot, 0) // BLOCK_TOKENS]


@pytest.mark.parametrize("window", [None, 8, 40], ids=str)
def test_whatever_happens_promises_are_kept(window: int | None) -> None:
    num_grown = num_lent = 0
    for seed in range(60):
        life = Life(seed, group(window))
        life.run(300)
        num_grown, num_lent = num_grown + life.num_grown, num_lent + life.num_lent
    assert num_grown > 2000
    assert num_lent > 100


class CountsNoLoans(BlockGroup):
    @property
    def num_spoken_for(self) -> int:
        return sum(map(self.held, range(NUM_SLOTS))) + sum(self.promised)


class LendsToAnyone(BlockGroup):
    def can_lend(self, slot: int, num_blocks: int) -> bool:
        return True


class PromisesTwice(BlockGroup):
    def leave_behind(self, slot: int, length: int) -> None:
        super().leave_behind(slot, length)
        self.promised[slot] += self.blocks.promise(1)


@pytest.mark.parametrize(
    ("window", "defective"), [(None, CountsNoLoans), (40, CountsNoLoans), (40, LendsToAnyone), (8, PromisesTwice)]
)
def test_a_defect_is_found(window: int | None, defective: type[BlockGroup]) -> None:
    def run_all() -> None:
        for seed in range(60):
            Life(seed, group(window, defective)).run(300)

    with pytest.raises(Unkept, match=r"seed \d+"):
        run_all()


def test_a_lent_block_counts_once_beside_its_slots() -> None:
    subject = group(None)
    assert subject.promise(0, 4)
    subject.grow(0, 4 * BLOCK_TOKENS)
    loan = take(subject, list(subject.tables[0][:3]))
    for block in loan:
        subject.lend(block)
    assert subject.num_spoken_for == 4
    subject.clear(0)
    assert subject.num_spoken_for == 3
    subject.adopt(1, loan)
    assert subject.num_spoken_for == 3
    drop(subject, loan, is_lent=True)
    assert subject.num_spoken_for == 3
    subject.clear(1)
    assert (subject.num_spoken_for, subject.blocks.num_held) == (0, 0)


def test_a_window_lends_only_where_it_can_go_on() -> None:
    subject = group(8)
    assert subject.promise(0, ROW_BLOCKS)
    subject.grow(0, BLOCK_TOKENS)
    assert not subject.can_lend(0, 1)
    subject.forget(0, 1)
    assert subject.can_lend(0, 1)


def test_only_what_the_next_token_sees_is_adopted() -> None:
    subject = group(8)
    assert subject.promise(0, 4)
    subject.grow(0, 4 * BLOCK_TOKENS)
    subject.adopt(1, subject.tables[0])
    assert subject.tables[1] == [NO_BLOCK] * 3 + subject.tables[0][3:]
    assert subject.promised[1] == 0
