"""A process that writes blocks of a prefix cache until it is killed: python -m tests.worker.prefix_child FOLDER ...

FOLDER MAX_BYTES: write blocks without end, and print the index of each that is written.
FOLDER MAX_BYTES midway: write one block, be killed in the midst of another.
FOLDER MAX_BYTES full: write blocks of two sizes while no file may be larger than the small one needs; print counters.
"""

import os
import resource
import signal
import sys
from collections.abc import Generator
from itertools import count
from pathlib import Path

from tests.worker.prefix_parts import Memory, block, content
from worker.prefix_folder import _write_locked
from worker.prefix_store import PrefixStore

SMALL_BYTES = 20_000
LARGE_BYTES = 1_000_000


def put(store: PrefixStore, index: int, num_bytes: int) -> bool:
    """Write a block that follows none, and wait until it is written."""
    part = Memory().part(content("a", [index], num_bytes))
    return store.put(store.child(store.root("a"), block(index)), block(index), part) is not None and store.drain(10)


class Fatal(list[bytes]):
    """Pieces of a file whose writer dies after the first."""

    def __iter__(self) -> Generator[bytes]:
        yield self[0]
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    store = PrefixStore(Path(sys.argv[1]), int(sys.argv[2]), Memory().codec())
    match sys.argv[3:]:
        case ["midway"]:
            put(store, 0, SMALL_BYTES)
            unfinished = store._folder.path(bytes(32)).with_suffix(f".{'0' * 16}.tmp")
            _write_locked(unfinished, store._folder.path(bytes(32)), Fatal([bytes(LARGE_BYTES)]))
        case ["full"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE_BYTES // 2, LARGE_BYTES // 2))
            taken = [put(store, index, size) for index, size in enumerate((SMALL_BYTES, LARGE_BYTES, SMALL_BYTES))]
            print(taken, store.counters.num_written, store.counters.num_refused)
        case _:
            for index in count():
                put(store, index, LARGE_BYTES)
                print(index, flush=True)


if __name__ == "__main__":
    main()
