import logging
import os
import stat
from pathlib import Path

import pytest

from tests.worker.prefix_blocks import child, files, get, make_store, nbytes, only_file, put
from tests.worker.prefix_child import SMALL_BYTES
from tests.worker.prefix_parts import NO_LIMIT, Memory, add, block, content, num_found, writer_held
from worker.prefix_cache import MAX_WRITE_BYTES, PrefixCache
from worker.prefix_files import HEADER_BYTES
from worker.prefix_store import PAUSE_S, PrefixStore


def test_a_block_is_read_as_it_was_written(tmp_path: Path):
    put(make_store(tmp_path), 1)
    assert get(make_store(tmp_path), 1) == content("a", [1], 100)


def test_what_is_not_there_is_not_found(tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    assert (get(store, 2), get(store, 1, "b")) == (None, None)
    assert store.counters.num_damaged == 0


def test_a_name_stands_for_everything_that_the_numbers_depend_on(tmp_path: Path):
    def names(fingerprint: str, namespace: str, first: int) -> list[bytes]:
        store = make_store(tmp_path, fingerprint=fingerprint)
        start = store.child(store.root(namespace), block(first))
        return [start, store.child(start, block(9))]

    found = [*names("x", "y", 1), *names("x", "y", 2), *names("x", "z", 1), *names("w", "y", 1), *names("xy", "", 1)]
    assert len(set(found)) == 10


def test_another_fingerprint_finds_nothing(tmp_path: Path):
    put(make_store(tmp_path), 1)
    assert get(make_store(tmp_path, fingerprint="weights 2"), 1) is None


def test_others_may_not_read_it(tmp_path: Path):
    put(make_store(tmp_path / "new"), 1)
    path = only_file(tmp_path)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, tmp_path / "new")]
    assert modes == [0o600, 0o700, 0o700]


def test_a_folder_left_open_is_closed(tmp_path: Path):
    put(make_store(tmp_path), 1)
    only_file(tmp_path).parent.chmod(0o777)
    make_store(tmp_path)
    assert stat.S_IMODE(only_file(tmp_path).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("offset", [*range(0, HEADER_BYTES, 3), HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99])
def test_a_changed_byte_is_a_miss_and_deletes_the_file(offset: int, tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)
    assert (get(store, 1), files(tmp_path), store.counters.num_damaged) == (None, [], 1)


def test_without_a_checksum_a_changed_byte_would_go_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.prefix_files.zlib.crc32", lambda *_: 0)
    with pytest.raises(AssertionError):
        test_a_changed_byte_is_a_miss_and_deletes_the_file(HEADER_BYTES + 99, tmp_path)


@pytest.mark.parametrize("num_bytes", [0, 7, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99, HEADER_BYTES + 101])
def test_a_file_of_another_size_is_a_miss_and_deleted(num_bytes: int, tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    os.truncate(only_file(tmp_path), num_bytes)
    assert (get(store, 1), files(tmp_path)) == (None, [])


def test_a_huge_file_is_not_read(tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    os.truncate(only_file(tmp_path), 1 << 40)
    assert (get(store, 1), files(tmp_path)) == (None, [])


def test_a_file_under_another_name_is_a_miss_and_deleted(tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    name = put(store, 2)
    store._folder.path(store.child(store.root("a"), block(1))).replace(store._folder.path(name))
    assert (get(store, 2), files(tmp_path)) == (None, [])


def test_bytes_that_the_cache_does_not_know_are_a_miss_and_deleted(tmp_path: Path):
    store = make_store(tmp_path)
    name = store.child(store.root("a"), block(1))
    store.put(name, block(1), Memory().part(b"foreign"))
    assert store.drain(5)
    assert (get(store, 1), files(tmp_path)) == (None, [])


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file_is_a_miss(kind: str, tmp_path: Path):
    store = make_store(tmp_path)
    path = store._folder.path(put(store, 1))
    elsewhere = tmp_path / "elsewhere"
    path.replace(elsewhere)
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(elsewhere)}[kind]()
    assert get(store, 1) is None
    assert elsewhere.exists()


def test_a_block_without_room_is_a_miss_and_stays(tmp_path: Path):
    store = make_store(tmp_path)
    name = put(store, 1)
    assert store.get(name, block(1), lambda num_bytes: num_bytes < 100) is None
    assert get(store, 1) is not None


def test_a_damaged_block_is_written_again(tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1)
    only_file(tmp_path).write_bytes(b"")
    get(store, 1)
    put(store, 1)
    assert get(store, 1) == content("a", [1], 100)


def test_a_block_that_holds_more_than_before_takes_its_place(tmp_path: Path):
    store = make_store(tmp_path)
    put(store, 1, 100)
    put(store, 1, 200)
    put(store, 1, 200)
    assert (get(store, 1), store.counters.num_written, store.nbytes) == (content("a", [1], 200), 2, nbytes(tmp_path))


# Disks that fail.


def test_a_full_disk_is_logged_once_and_what_is_there_is_read(tmp_path: Path):
    with child(tmp_path, NO_LIMIT, "full") as process:
        output, _ = process.communicate(timeout=20)
    assert output == "[True, True, False] 1 1\n"
    assert [path.suffix for path in files(tmp_path)] == [".kv"]
    assert get(make_store(tmp_path), 0) == content("a", [0], SMALL_BYTES)


def test_without_its_folder_the_cache_goes_on_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_bytes(b"")
    store = make_store(tmp_path / "file" / "blocks")
    name = store.child(store.root("a"), block(1))
    assert [store.put(name, block(1), Memory().part(b"x")) for _ in range(3)] == [None] * 3
    store.touch([name])
    assert store.drain(5)
    assert (get(store, 1), store.counters.num_refused, store.nbytes) == (None, 3, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "prefix_cache_folder cannot be used; the prefix cache goes on without it"
    ]


def test_writing_is_tried_again_after_a_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    now = [0.0]
    (tmp_path / "file").write_bytes(b"")
    store = PrefixStore(tmp_path / "file" / "blocks", NO_LIMIT, Memory().codec(), clock=lambda: now[0])
    assert store.drain(5)
    now[0] = PAUSE_S
    put(store, 1)  # fails again, without another line
    (tmp_path / "file").unlink()
    now[0] = 2 * PAUSE_S
    put(store, 1)
    assert get(store, 1) == content("a", [1], 100)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_block_that_was_not_written_is_offered_again_when_it_is_used_after_the_pause(tmp_path: Path):
    now = [0.0]
    store = PrefixStore(tmp_path / "blocks", NO_LIMIT, Memory().codec(), clock=lambda: now[0])
    cache = PrefixCache(NO_LIMIT, store=store)
    assert store.drain(5)
    (tmp_path / "blocks").rename(tmp_path / "before")
    (tmp_path / "blocks").write_bytes(b"")
    add(cache, Memory(), (1, 2))  # taken, and fails
    assert store.drain(5)
    (tmp_path / "blocks").unlink()
    written: list[int] = []
    for now[0] in (1.0, PAUSE_S - 1, PAUSE_S, PAUSE_S + 1):
        num_found(cache, (1, 2))
        assert store.drain(5)
        written.append(store.counters.num_written)
    assert written == [0, 0, 2, 2]
    assert num_found(PrefixCache(NO_LIMIT, store=make_store(tmp_path / "blocks")), (1, 2)) == 2


def test_a_folder_of_another_kind_is_not_used(tmp_path: Path):
    put(make_store(tmp_path), 1)
    own = only_file(tmp_path).parent
    own.rename(tmp_path / "moved")
    own.symlink_to(tmp_path / "moved")
    assert get(make_store(tmp_path), 1) is None


def test_a_cap_below_one_block_stores_nothing(tmp_path: Path):
    store = make_store(tmp_path, HEADER_BYTES + 99)
    put(store, 1)
    assert (files(tmp_path), store.nbytes) == ([], 0)


# The queue.


def test_no_more_waits_than_the_queue_may_hold(tmp_path: Path):
    store = PrefixStore(tmp_path, NO_LIMIT, Memory().codec(), max_waiting_bytes=250)
    names = [store.child(store.root("a"), block(index)) for index in range(3)]
    with writer_held(store):
        parts = [Memory().part(bytes(100)) for _ in names]
        taken = [store.put(name, block(index), parts[index]) is not None for index, name in enumerate(names)]
    assert store.drain(5)
    assert (taken, store.counters.num_written, store.counters.num_refused) == ([True, True, False], 2, 1)


def test_what_the_queue_has_no_room_for_is_offered_when_it_has(tmp_path: Path):
    store = PrefixStore(tmp_path, NO_LIMIT, Memory().codec(), max_waiting_bytes=250)
    cache = PrefixCache(NO_LIMIT, store=store)
    with writer_held(store):
        add(cache, Memory(), (1, 2, 3, 4, 5), num_bytes=100)
        assert cache.write_on()
        assert store.counters.num_written == 0
    while cache.write_on(5.0):
        pass
    assert store.drain(5)
    assert store.counters.num_written == 5
    assert not cache.write_on()


def test_what_was_dropped_meanwhile_is_not_offered(tmp_path: Path):
    store = PrefixStore(tmp_path, NO_LIMIT, Memory().codec(), max_waiting_bytes=250)
    cache = PrefixCache(500, store=store)
    memory = Memory()
    with writer_held(store):
        add(cache, memory, (1, 2, 3, 4, 5), num_bytes=100)
        memory.part(b"")
        cache.let_go(cache.hold(memory.parts([bytes(200)])))
        assert cache.num_blocks == 3
    while cache.write_on(5.0):
        pass
    assert store.drain(5)
    assert store.counters.num_written == 3


def test_a_block_that_no_queue_could_hold_is_not_waited_for(tmp_path: Path):
    store = PrefixStore(tmp_path, NO_LIMIT, Memory().codec(), max_waiting_bytes=99)
    cache = PrefixCache(NO_LIMIT, store=store)
    add(cache, Memory(), (1,), num_bytes=100)
    assert not cache.write_on()


def test_a_long_prompt_is_written_in_several_calls(tmp_path: Path):
    store = make_store(tmp_path)
    cache = PrefixCache(NO_LIMIT, store=store)
    add(cache, Memory(), (1, 2, 3), num_bytes=MAX_WRITE_BYTES)
    assert store.drain(10)
    assert store.counters.num_written == 1
    assert [cache.write_on(), cache.write_on(), cache.write_on()] == [True, False, False]
    assert store.drain(10)
    assert store.counters.num_written == 3


def test_closing_writes_what_waits_and_takes_no_more(tmp_path: Path):
    store = make_store(tmp_path)
    with writer_held(store):
        name = store.child(store.root("a"), block(1))
        assert store.put(name, block(1), Memory().part(content("a", [1], 100)))
        assert not store.close(0)
        assert not store.put(name, block(1), Memory().part(b"x"))
    assert store.close(5)
    assert get(store, 1) == content("a", [1], 100)
