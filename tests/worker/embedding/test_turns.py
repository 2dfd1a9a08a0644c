"""Steps are shared out fairly, within their bounds, and nobody starves."""

import random
from collections import Counter

import pytest

from worker.embedding.turns import MIN_PIECE_TOKENS, Piece, Room, StepBounds, Turns

STEP = StepBounds(num_tokens=512, num_inputs=16, num_requests=8)


def made(num_slots: int = 16, short: int = 2048, long: int = 4096) -> Turns:
    return Turns(Room(num_slots, short, long, STEP.num_tokens))


def step(turns: Turns, bounds: StepBounds = STEP) -> list[Piece]:
    """Plan a step and compute it."""
    pieces = turns.plan(bounds)
    for piece in pieces:
        if piece.is_last:
            turns.release(piece)
    return pieces


def shares(pieces: list[Piece]) -> Counter[str]:
    taken = Counter[str]()
    for piece in pieces:
        taken[piece.key] += piece.count
    return taken


def test_an_input_is_cut_where_a_step_is_full_and_goes_on_in_its_slot() -> None:
    turns = made()
    turns.add("a", 0, [500, 300])
    first, second = step(turns), step(turns)
    assert [(each.index, each.start, each.count, each.is_last) for each in first] == [(0, 0, 500, True)]
    assert [(each.index, each.start, each.count, each.is_last) for each in second] == [(1, 0, 300, True)]
    turns.add("b", 0, [400, 300])
    first, second = step(turns), step(turns)
    assert [(each.index, each.start, each.count, each.is_last) for each in first] == [
        (0, 0, 400, True),
        (1, 0, 112, False),
    ]
    assert [(each.index, each.start, each.count, each.is_last) for each in second] == [(1, 112, 188, True)]
    assert first[1].slot == second[0].slot


def test_a_newcomer_shares_the_next_step_with_whoever_was_there_long_before() -> None:
    turns = made()
    turns.add("old", 0, [100] * 100)
    for _ in range(5):
        step(turns)
    turns.add("new", 0, [100] * 100)
    taken = shares([piece for _ in range(10) for piece in step(turns)])
    assert abs(taken["old"] - taken["new"]) <= 200


def test_short_inputs_do_not_wait_for_a_long_one() -> None:
    turns = made()
    turns.add("long", 0, [4000])
    step(turns)
    turns.add("short", 0, [20])
    assert shares(step(turns))["short"] == 20


def test_a_long_input_gets_its_room_before_long_ones_that_came_later() -> None:
    turns = made(long=4096)
    turns.add("many", 0, [700] * 50)  # one of them is always under way, for no step ends with it
    step(turns)
    turns.add("longest", 0, [4096])
    seen = [shares(step(turns)) for _ in range(8)]
    assert any(taken["longest"] for taken in seen)


def test_a_higher_priority_takes_all_that_it_can() -> None:
    turns = made()
    turns.add("low", 0, [100] * 50)
    turns.add("high", 1, [100] * 5)
    assert shares(step(turns)) == {"high": 500}
    assert shares(step(turns)) == {"low": 500}  # 12 tokens are not worth a cut


def test_what_is_removed_gives_back_all_that_it_held() -> None:
    turns = made(num_slots=2, short=512)
    turns.add("a", 0, [250, 262])
    turns.plan(STEP)  # and is never computed
    assert sorted(turns.remove("a")) == [0, 1]
    assert turns.remove("a") == []
    turns.add("b", 0, [512])
    assert shares(step(turns)) == {"b": 512}


def test_no_more_inputs_and_requests_than_may_be_share_a_step() -> None:
    turns = made()
    for number in range(12):
        turns.add(f"{number}", 0, [1] * 5)
    pieces = step(turns)
    assert len(pieces) == STEP.num_inputs
    assert len({piece.key for piece in pieces}) == STEP.num_requests


@pytest.mark.parametrize("seed", range(20))
def test_every_token_is_computed_once_and_in_order(seed: int) -> None:
    check_random_life(seed, Turns)


class ForgetfulTurns(Turns):
    """Never takes room back from what is removed."""

    def remove(self, key: str) -> list[int]:
        self._turns.pop(key, None)
        return []


def test_the_random_lives_catch_room_that_is_lost() -> None:
    caught: list[int] = []
    for seed in range(20):
        try:
            check_random_life(seed, ForgetfulTurns)
        except AssertionError:
            caught.append(seed)
    assert len(caught) > 10


def check_random_life(seed: int, kind: type[Turns]) -> None:
    """Add, remove and compute at random; assert what must hold."""
    chance = random.Random(seed)
    room = Room(8, 1024, 2048, STEP.num_tokens)
    turns = kind(room)
    lengths: dict[str, list[int]] = {}
    next_token: dict[tuple[str, int], int] = {}
    for number in range(300):
        if chance.random() < 0.2 and number < 200:
            key = f"{number}"
            lengths[key] = [chance.choice((1, 30, 300, 512, 1500)) for _ in range(chance.randint(1, 6))]
            turns.add(key, chance.randint(-1, 1), lengths[key])
        if lengths and chance.random() < 0.1:
            key = chance.choice(list(lengths))
            del lengths[key]
            turns.remove(key)
        bounds = StepBounds(chance.choice((16, 64, 200, 512)), 6, 4)
        pieces = step(turns, bounds)
        least = min(MIN_PIECE_TOKENS, bounds.num_tokens)
        assert sum(piece.count for piece in pieces) <= bounds.num_tokens
        assert pieces or not lengths, f"seed {seed}: nothing moves"
        for piece in pieces:
            place = piece.key, piece.index
            assert piece.start == next_token.get(place, 0), f"seed {seed}"
            next_token[place] = piece.start + piece.count
            assert piece.is_last == (next_token[place] == lengths[piece.key][piece.index])
            assert piece.is_last or piece.count >= least
        for key in [
            key for key, each in lengths.items() if all(next_token.get((key, i)) == n for i, n in enumerate(each))
        ]:
            del lengths[key]
            turns.remove(key)
    assert not lengths, f"seed {seed}: {lengths} never ended"
    assert len(room._free) == 8
    assert room._left == {False: 1024, True: 2048}, f"seed {seed}"
