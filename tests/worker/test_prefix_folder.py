import fcntl
import os
import random
from pathlib import Path

import pytest

from tests.worker.prefix_blocks import child, files, get, make_store, nbytes, put
from tests.worker.prefix_child import LARGE_BYTES, SMALL_BYTES
from tests.worker.prefix_parts import NO_LIMIT, content
from worker.prefix_files import HEADER_BYTES
from worker.prefix_store import PrefixStore


def used_at(store: PrefixStore, name: bytes, time_s: int) -> None:
    os.utime(store._folder.path(name), (time_s, time_s))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path):
    store = make_store(tmp_path, 3 * (HEADER_BYTES + 100))
    names = [put(store, index) for index in range(3)]
    for time_s, name in enumerate(names):
        used_at(store, name, 1000 + time_s)
    store.touch([names[0]])
    put(store, 3)
    assert [get(store, index) is not None for index in range(4)] == [True, False, True, True]


def test_of_one_sequence_the_end_goes_first(tmp_path: Path):
    store = make_store(tmp_path, 3 * (HEADER_BYTES + 100))
    store.touch([put(store, index) for index in range(3)])
    put(store, 3)
    assert [get(store, index) is not None for index in range(4)] == [True, True, False, True]


def test_any_history_stays_under_the_cap(tmp_path: Path):
    chance = random.Random(5)
    max_bytes = 20_000
    store = make_store(tmp_path, max_bytes)
    for step in range(200):
        if step % 50 == 49:
            store = make_store(tmp_path, max_bytes, chance.choice(("weights 1", "weights 2")))
        put(store, chance.randrange(60), chance.choice((1, 100, 1000, 3000)), chance.choice("ab"))
        assert nbytes(tmp_path) == store.nbytes <= max_bytes
    assert store.nbytes > max_bytes // 2


def test_the_histories_catch_a_folder_that_does_not_count_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker.prefix_folder._folders", lambda _: iter(()))
    with pytest.raises(AssertionError):
        test_any_history_stays_under_the_cap(tmp_path)


def test_an_earlier_checkpoints_blocks_count_and_go_first(tmp_path: Path):
    max_bytes = 4 * (HEADER_BYTES + 100)
    old = make_store(tmp_path, max_bytes, "weights 1")
    for index in range(4):
        used_at(old, put(old, index), 1000)
    new = make_store(tmp_path, max_bytes, "weights 2")
    for index in range(4):
        put(new, index)
        assert nbytes(tmp_path) <= max_bytes
    assert [get(new, index) is not None for index in range(4)] == [True] * 4
    assert [path.name for path in tmp_path.iterdir()] == [new._folder._own.name]


def test_a_smaller_cap_is_kept_from_the_start(tmp_path: Path):
    store = make_store(tmp_path)
    for index in range(10):
        put(store, index)
    store = make_store(tmp_path, 3 * (HEADER_BYTES + 100))
    assert store.drain(5)
    assert nbytes(tmp_path) == store.nbytes <= 3 * (HEADER_BYTES + 100)


def test_another_workers_writes_are_noticed(tmp_path: Path):
    max_bytes = 100 * (HEADER_BYTES + 100)
    stores = [make_store(tmp_path, max_bytes, fingerprint) for fingerprint in ("weights 1", "weights 2")]
    for index in range(200):
        put(stores[index % 2], index)
        assert nbytes(tmp_path) <= max_bytes + max_bytes // 16
    assert nbytes(tmp_path) > max_bytes // 2


def test_nothing_but_our_own_files_is_ever_deleted(tmp_path: Path):
    store = make_store(tmp_path, HEADER_BYTES + 100)
    own = store._folder._own
    others = [tmp_path / "notes.kv", tmp_path / "blocks-mine" / f"{'0' * 64}.kv", own / "readme", own / "x.tmp"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (1000, 1000))
    put(store, 1)
    put(store, 2)
    assert [path.exists() for path in others] == [True] * 4


# Processes that die, and those that live.


def test_a_writer_killed_in_the_midst_of_a_file_leaves_a_usable_folder(tmp_path: Path):
    with child(tmp_path, NO_LIMIT, "midway") as process:
        assert process.wait(20) == -9
    assert [path.suffix for path in files(tmp_path)] == [".tmp", ".kv"]
    store = make_store(tmp_path)
    assert store.drain(5)
    assert [path.suffix for path in files(tmp_path)] == [".kv"]
    assert get(store, 0) == content("a", [0], SMALL_BYTES)


def test_writers_killed_at_any_time_leave_whole_blocks_under_the_cap(tmp_path: Path):
    chance, max_bytes = random.Random(8), 9 * LARGE_BYTES
    for _ in range(5):
        with child(tmp_path, max_bytes) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(1, 30)):
                process.stdout.readline()
            process.kill()
        assert nbytes(tmp_path) <= max_bytes
        store = make_store(tmp_path, max_bytes)
        assert store.drain(5)
        assert all(path.suffix == ".kv" for path in files(tmp_path))
        found = [(index, get(store, index)) for index in range(1000)]
        whole = [text == content("a", [index], LARGE_BYTES) for index, text in found if text is not None]
        assert whole == [True] * len(files(tmp_path))
        assert len(whole) > 0


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_unfinished_file_stays_while_its_writer_lives(is_alive: bool, tmp_path: Path):
    store = make_store(tmp_path)
    assert store.drain(5)
    unfinished = store._folder.path(bytes(32)).with_suffix(f".{'0' * 16}.tmp")
    with unfinished.open("wb") as stream:
        stream.write(bytes(1000))
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX if is_alive else fcntl.LOCK_UN)
        store = make_store(tmp_path)
        assert store.drain(5)
        assert (unfinished.exists(), store.nbytes) == (is_alive, 1000 * is_alive)
