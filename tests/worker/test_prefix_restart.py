import random
from pathlib import Path

import pytest

from tests.worker.prefix_parts import NO_LIMIT, Memory, add, content, content_of, num_found, tokens, writer_held
from worker.prefix_cache import PrefixCache
from worker.prefix_files import HEADER_BYTES
from worker.prefix_store import PrefixStore

NAMESPACES = ("a", "b")


def store_in(folder: Path, memory: Memory, max_bytes: int = NO_LIMIT, fingerprint: str = "weights 1") -> PrefixStore:
    return PrefixStore(folder, max_bytes, memory.codec(fingerprint))


def test_a_new_process_finds_what_an_old_one_held(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    add(PrefixCache(1000, store=store), memory, [1, 2, 3])
    assert store.close(5)
    cache = PrefixCache(1000, store=store_in(tmp_path, Memory()))
    found = cache.find("a", tokens([1, 2, 3, 4]), NO_LIMIT)
    assert [content_of(part) for part in found] == [content("a", range(1, end), 10) for end in (2, 3, 4)]
    assert (cache.nbytes, cache.hit_tokens) == (30, 96)


def test_what_left_memory_is_read_back_behind_what_is_there(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    cache = PrefixCache(1000, store=store)
    add(cache, memory, [1, 2, 3])
    assert store.drain(5)
    cache._shrink(10)
    assert (cache.num_blocks, num_found(cache, [1, 2, 3]), store.counters.num_read) == (1, 3, 2)
    assert memory.nbytes == cache.nbytes == 30


def test_the_disk_is_not_read_for_what_is_in_memory(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    cache = PrefixCache(1000, store=store)
    add(cache, memory, [1, 2, 3])
    assert store.drain(5)
    assert (len(cache.find("a", tokens([1, 2, 3]), 64)), store.counters.num_read) == (2, 0)


def test_namespaces_share_nothing_on_disk(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    add(PrefixCache(1000, store=store), memory, [1, 2])
    assert store.close(5)
    cache = PrefixCache(1000, store=store_in(tmp_path, Memory()))
    assert [num_found(cache, [1, 2], namespace) for namespace in ("b", "", "a")] == [0, 0, 2]


def test_reading_back_keeps_the_cap_and_the_beginning(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    add(PrefixCache(1000, store=store), memory, range(10))
    assert store.close(5)
    memory = Memory()
    cache = PrefixCache(35, store=store_in(tmp_path, memory))
    add(cache, memory, [20, 21])
    assert (num_found(cache, range(10)), cache.nbytes, memory.nbytes, cache.evictions_total) == (3, 30, 30, 2)
    assert (num_found(cache, range(10)), cache.evictions_total) == (3, 2)


def test_one_call_reads_only_so_much_and_the_next_goes_on(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    add(PrefixCache(1000, store=store), memory, range(5))
    assert store.close(5)
    cache = PrefixCache(1000, store=store_in(tmp_path, Memory()), max_read_bytes=20)
    found = [(num_found(cache, range(5)), cache.has_more) for _ in range(3)]
    assert found == [(2, True), (4, True), (5, False)]
    assert cache.lookup_tokens == cache.hit_tokens == 160


def test_prompts_that_drive_each_other_out_stop_reading(tmp_path: Path):
    memory = Memory()
    store = store_in(tmp_path, memory)
    cache = PrefixCache(1000, store=store)
    add(cache, memory, range(10))
    add(cache, memory, range(20, 30))
    assert store.drain(5)
    cache = PrefixCache(100, store=store, max_read_bytes=40)
    reached = {0: 0, 20: 0}
    num_calls = 0
    while reached:
        for first in tuple(reached):
            num_calls += 1
            num_found(cache, range(first, first + 10))
            if not cache.has_more or cache.reached_blocks <= reached[first]:
                del reached[first]
                continue
            reached[first] = cache.reached_blocks
    assert num_calls <= 20


def test_a_block_that_the_full_queue_did_not_take_is_written_at_its_next_use(tmp_path: Path):
    memory = Memory()
    store = PrefixStore(tmp_path, NO_LIMIT, memory.codec(), max_waiting_bytes=15)
    cache = PrefixCache(1000, store=store)
    with writer_held(store):
        add(cache, memory, [1, 2])
    assert store.counters.num_refused == 1
    assert store.drain(5)
    num_found(cache, [1, 2])
    assert store.close(5)
    assert num_found(PrefixCache(1000, store=store_in(tmp_path, Memory())), [1, 2]) == 2


@pytest.mark.parametrize("piece", [1, 7, 40])
def test_of_a_prompt_larger_than_the_disk_the_beginning_is_kept(tmp_path: Path, piece: int):
    num_bytes, num_blocks, cap_blocks = 5000, 40, 20
    memory = Memory()
    store = store_in(tmp_path, memory, cap_blocks * (num_bytes + HEADER_BYTES))
    cache = PrefixCache(NO_LIMIT, store=store)
    add(cache, memory, range(100, 115), num_bytes)  # what an earlier prompt left
    for end in range(piece, num_blocks + piece, piece):
        add(cache, memory, range(min(end, num_blocks)), num_bytes)
        assert store.drain(5)
    assert store.close(5)
    reader = PrefixCache(NO_LIMIT, store=store_in(tmp_path, Memory()))
    assert num_found(reader, range(num_blocks)) == cap_blocks * 7 // 8


@pytest.mark.parametrize("seed", range(6))
def test_with_a_disk_any_history_returns_only_true_blocks_and_forgets_none(seed: int, tmp_path: Path):
    chance, kept = random.Random(seed), set[tuple[str, tuple[int, ...]]]()
    for _ in range(4):  # restarts
        memory = Memory()
        store = store_in(tmp_path, memory)
        cache = PrefixCache(chance.choice((0, 25, 100)), store=store)
        for _ in range(40):
            namespace = chance.choice(NAMESPACES)
            symbols = tuple(chance.randint(0, 1) for _ in range(chance.randint(0, 6)))
            if chance.random() < 0.5:
                add(cache, memory, symbols, 10, namespace)
                fitting = min(len(symbols), cache._max_bytes // 10)
                kept |= {(namespace, symbols[:end]) for end in range(1, fitting + 1)}
            else:
                found = cache.find(namespace, tokens(symbols), NO_LIMIT)
                expected = [content(namespace, symbols[:end], 10) for end in range(1, len(found) + 1)]
                assert [content_of(part) for part in found] == expected
            assert cache.nbytes == memory.nbytes <= cache._max_bytes
        assert store.close(5)
    cache = PrefixCache(10_000, store=store_in(tmp_path, Memory()))
    assert all(num_found(cache, symbols, namespace) == len(symbols) for namespace, symbols in kept)
