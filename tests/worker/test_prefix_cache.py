import pytest

from tests.worker.prefix_parts import (
    NO_LIMIT,
    DroppedTwice,
    Memory,
    add,
    content,
    content_of,
    num_found,
    tokens,
    usable,
)
from worker.prefix_cache import PrefixCache


def test_finds_the_longest_shared_beginning():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2, 3])
    add(cache, memory, [1, 2, 4])
    found = cache.find("a", tokens([1, 2, 4, 5]), NO_LIMIT)
    assert [content_of(part) for part in found] == [content("a", symbols, 10) for symbols in ([1], [1, 2], [1, 2, 4])]


def test_shared_blocks_are_held_once():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2, 3])
    add(cache, memory, [1, 2, 4])
    assert (cache.num_blocks, cache.nbytes, memory.nbytes) == (4, 40, 40)


@pytest.mark.parametrize(("max_tokens", "num_blocks"), [(0, 0), (31, 0), (32, 1), (63, 1), (64, 2), (1000, 2)])
def test_covers_no_more_tokens_than_asked_for(max_tokens: int, num_blocks: int):
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2])
    assert len(cache.find("a", tokens([1, 2]), max_tokens)) == num_blocks


def test_returns_only_what_a_sequence_can_start_with():
    cache, memory = PrefixCache(1000, usable=usable), Memory()
    cache.add("a", tokens([1, 2, 3]), memory.parts([b"\1", b"\2", b"\3"]))
    assert [content_of(part) for part in cache.find("a", tokens([1, 2, 3]), NO_LIMIT)] == [b"\1", b"\2"]


def test_namespaces_share_nothing():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2])
    assert num_found(cache, [1, 2], "b") == 0


def test_parts_can_follow_blocks_that_are_held():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2])
    cache.add("a", tokens([1, 2, 3]), [memory.part(b"third")], first_block=2)
    assert num_found(cache, [1, 2, 3]) == 3


def test_parts_whose_beginning_is_gone_are_dropped():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1])
    cache.add("a", tokens([1, 2, 3, 4]), memory.parts([b"third", b"fourth"]), first_block=2)
    assert (cache.num_blocks, memory.nbytes) == (1, 10)


def test_parts_without_their_tokens_are_dropped():
    cache, memory = PrefixCache(1000), Memory()
    cache.add("a", tokens([1])[:-1], memory.parts([b"first"]))
    assert (cache.num_blocks, memory.nbytes) == (0, 0)


def test_a_part_that_holds_more_takes_the_place_of_one_that_holds_less():
    cache, memory = PrefixCache(1000), Memory()
    for text in (b"less", b"more", b"the most", b"least"):
        cache.add("a", tokens([1]), [memory.part(text)])
    assert [content_of(part) for part in memory.alive] == [b"the most"]
    assert cache.nbytes == 8


def test_the_least_recently_used_leaf_goes_first():
    cache, memory = PrefixCache(40), Memory()
    add(cache, memory, [1, 2])
    add(cache, memory, [1, 3])
    add(cache, memory, [4])
    num_found(cache, [1, 2])
    add(cache, memory, [5])
    assert [num_found(cache, symbols) for symbols in ([1, 2], [1, 3], [4], [5])] == [2, 1, 1, 1]
    assert cache.evictions_total == 1


def test_a_beginning_outlives_what_follows_it():
    cache, memory = PrefixCache(40), Memory()
    add(cache, memory, [1, 2, 3])
    add(cache, memory, [4, 5])
    assert num_found(cache, [1, 2, 3]) == 2


def test_of_a_sequence_over_the_cap_the_beginning_is_kept():
    cache, memory = PrefixCache(35), Memory()
    add(cache, memory, range(10))
    assert (num_found(cache, range(10)), memory.nbytes) == (3, 30)


def test_a_part_larger_than_the_cap_drives_nothing_out():
    cache, memory = PrefixCache(35), Memory()
    add(cache, memory, [1, 2])
    add(cache, memory, [3], num_bytes=36)
    assert (num_found(cache, [1, 2]), cache.nbytes, memory.nbytes) == (2, 20, 20)


def test_clearing_gives_everything_back():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2, 3])
    add(cache, memory, [1, 4], namespace="b")
    cache.clear()
    assert (cache.nbytes, cache.num_blocks, memory.nbytes, cache.evictions_total) == (0, 0, 0, 0)


def test_a_namespace_without_blocks_is_forgotten():
    cache, memory = PrefixCache(10), Memory()
    for index in range(100):
        add(cache, memory, [1], namespace=str(index))
        num_found(cache, [1], namespace=f"{index}, looked up only")
    assert len(cache._roots) == 1


def test_counts_what_was_looked_up_and_found():
    cache, memory = PrefixCache(1000), Memory()
    add(cache, memory, [1, 2])
    cache.find("a", [*tokens([1, 2]), 7, 8], 65)
    cache.find("a", tokens([3]), 31)
    assert (cache.lookup_tokens, cache.hit_tokens) == (65 + 31, 64)


def test_a_part_dropped_twice_would_show():
    part = Memory().part(b"x")
    part.drop()
    with pytest.raises(DroppedTwice):
        part.drop()
