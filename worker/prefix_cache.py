"""What can be reused of earlier prompts, and what it costs: plain accounting, without a tensor.

Each namespace has a tree whose edges are blocks of 32 token ids; a node owns what one block holds in all layers. The
nodes of all trees stand in one line by their last use, in which a node never comes after one that leads to it. So the
first of the line is always a leaf, and making room takes it, whatever the tree looks like.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from models.blocks import BLOCK_TOKENS, Part
from worker.prefix_store import PrefixStore, Write

# Half a second of reading at the 500 MB/s of a plain SSD, and the 4,096 tokens of a small model.
MAX_READ_BYTES = 256 << 20
# What one call copies for the disk: some 10 ms.
MAX_WRITE_BYTES = 16 << 20
MAX_UNWRITTEN_PATHS = 64

_Key = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Node:
    namespace: str
    key: _Key
    name: bytes  # on disk; empty without a disk
    part: Part
    num_bytes: int
    siblings: dict[_Key, _Node]  # where it stands itself
    write: Write | None = None  # to the disk, which took it
    is_held: bool = True
    children: dict[_Key, _Node] = field(default_factory=dict["_Key", "_Node"])


class PrefixCache:
    """Owns parts of sequences, by their tokens, within a cap of bytes.

    Only the thread of the engine uses it; others may read its numbers.

    Args:
        max_bytes: cap of what the parts hold in memory, exact after each call.
        usable: says how many of the first of these parts a sequence can start with.
        store: the tier on disk.
        max_read_bytes: that one `find` reads from the disk.

    Attributes:
        nbytes: held in memory, what `hold` counts among it.
        lookup_tokens: of all prompts that were looked up, as far as they could have been found.
        hit_tokens: of them, those found.
        evictions_total: blocks that had to go for others.
        has_more: the last `find` stopped because it had read enough; called again, it goes on. Prompts that drive each
            other's blocks out could go on for ever: who asks again stops when `reached_blocks` has not grown.
        reached_blocks: that the last `find` knew, before `usable` cut them.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        usable: Callable[[Sequence[Part]], int] = len,
        store: PrefixStore | None = None,
        max_read_bytes: int = MAX_READ_BYTES,
    ) -> None:
        self._max_bytes = max_bytes
        self._usable = usable
        self._store = store
        self._max_read_bytes = max_read_bytes
        self._roots: dict[str, dict[_Key, _Node]] = {}
        self._line: OrderedDict[_Node, None] = OrderedDict()  # least recently used first
        self._unwritten: deque[list[_Node]] = deque()
        self._aside_bytes = 0
        self.nbytes = 0
        self.lookup_tokens = 0
        self.hit_tokens = 0
        self.evictions_total = 0
        self.has_more = False
        self.reached_blocks = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in memory."""
        return len(self._line)

    def find(self, namespace: str, token_ids: Sequence[int], max_tokens: int) -> list[Part]:
        """Return the parts of the longest known beginning of a prompt, and count them as used.

        Blocks that are only on disk are read where they make it longer. The parts stay the cache's: take what is
        needed of them before anything else is done with it.

        Args:
            namespace: whose blocks; no other's are ever returned.
            token_ids: the prompt.
            max_tokens: that the parts cover at most. One token has to be computed, so it is one less than the prompt.
        """
        keys = _keys(token_ids, max_tokens)
        path = self._walk(namespace, keys)
        self.has_more = False
        if self._store is not None and len(path) < len(keys):
            self._restore(self._store, namespace, keys, path)
        self.reached_blocks = len(path)
        del path[self._usable([node.part for node in path]) :]
        self._use(path)
        if not self.has_more:
            self.lookup_tokens += max(0, min(len(token_ids), max_tokens))
            self.hit_tokens += len(path) * BLOCK_TOKENS
        return [node.part for node in path]

    def add(self, namespace: str, token_ids: Sequence[int], parts: Sequence[Part], first_block: int = 0) -> None:
        """Take over the parts of a sequence, then make room.

        A part is dropped where its block is held already, unless it holds more bytes than that one, and where it
        could not be reached or not fit: the block before it is not held, or the two and all before do not fit
        the cap.

        Args:
            namespace: who may find them.
            token_ids: of the sequence from its start, at least to the end of the last part.
            parts: of consecutive blocks.
            first_block: index of the first of them; those before must be held.
        """
        keys = _keys(token_ids, (first_block + len(parts)) * BLOCK_TOKENS)
        path = self._walk(namespace, keys[:first_block])
        path_bytes = sum(node.num_bytes for node in path)
        for index, part in enumerate(parts, first_block):
            is_reached = len(path) == index < len(keys)
            if is_reached and (node := self._keep(namespace, path, keys[index], part, path_bytes)):
                path.append(node)
                path_bytes += node.num_bytes
            else:
                part.drop()
        self._use(path)
        self._shrink(self._max_bytes)

    def hold(self, parts: Sequence[Part]) -> list[Part]:
        """Count parts as held that nobody may find yet, making room for them.

        Returns:
            The first of them, as many as fit the cap beside all others that are held so; the rest is dropped.
        """
        num_kept = 0
        for part in parts:
            if self._aside_bytes + part.nbytes > self._max_bytes:
                break
            self._aside_bytes += part.nbytes
            self.nbytes += part.nbytes
            num_kept += 1
        for part in parts[num_kept:]:
            part.drop()
        self._shrink(self._max_bytes)
        return list(parts[:num_kept])

    def let_go(self, parts: Sequence[Part]) -> None:
        """Count parts that `hold` returned no longer: they are to be added or dropped at once."""
        num_bytes = sum(part.nbytes for part in parts)
        self._aside_bytes -= num_bytes
        self.nbytes -= num_bytes

    def write_on(self, wait_s: float = 0.0) -> bool:
        """Have the disk take more of what it had no room for; return whether something is left that it may take soon.

        Args:
            wait_s: for room.
        """
        if self._store is None or not self._unwritten:
            return False
        if wait_s:
            self._store.wait_for_room(wait_s)
        if self._offer(self._store, self._unwritten[0]):
            self._unwritten.popleft()
        return bool(self._unwritten)

    def clear(self) -> None:
        """Drop all blocks in memory; those on disk stay."""
        while self._line:
            self._drop_first()

    @property
    def _room_bytes(self) -> int:
        """Cap of what can be found."""
        return self._max_bytes - self._aside_bytes

    def _walk(self, namespace: str, keys: Sequence[_Key]) -> list[_Node]:
        path: list[_Node] = []
        level = self._roots.get(namespace, {})
        for key in keys:
            node = level.get(key)
            if node is None:
                break
            path.append(node)
            level = node.children
        return path

    def _keep(self, namespace: str, path: Sequence[_Node], key: _Key, part: Part, path_bytes: int) -> _Node | None:
        """Return the node of the block after `path`, or None if it cannot be held; settle who owns `part`."""
        level = path[-1].children if path else self._roots.get(namespace, {})
        node = level.get(key)
        num_bytes = part.nbytes
        fits = path_bytes + num_bytes <= self._room_bytes
        if node is None:
            return self._insert(namespace, path, key, part) if fits else None
        if num_bytes <= node.num_bytes or not fits:
            part.drop()
            return node
        node.part.drop()
        self.nbytes += num_bytes - node.num_bytes
        node.part, node.num_bytes, node.write = part, num_bytes, None
        return node

    def _insert(self, namespace: str, path: Sequence[_Node], key: _Key, part: Part) -> _Node:
        siblings = path[-1].children if path else self._roots.setdefault(namespace, {})
        node = _Node(namespace, key, self._name(namespace, path, key), part, part.nbytes, siblings)
        siblings[key] = node
        self._line[node] = None
        self.nbytes += node.num_bytes
        return node

    def _name(self, namespace: str, path: Sequence[_Node], key: _Key) -> bytes:
        if self._store is None:
            return b""
        return self._store.child(path[-1].name if path else self._store.root(namespace), key)

    def _restore(self, store: PrefixStore, namespace: str, keys: Sequence[_Key], path: list[_Node]) -> None:
        """Extend `path` by blocks from the disk, within the cap without taking from it what it has."""
        path_bytes = sum(node.num_bytes for node in path)
        num_read = 0
        self._order(path)

        def has_room(num_bytes: int) -> bool:
            if path_bytes + num_bytes > self._room_bytes:
                return False
            self._shrink(self._max_bytes - num_bytes)
            return True

        try:
            while len(path) < len(keys) and not self.has_more:
                key = keys[len(path)]
                part = store.get(self._name(namespace, path, key), key, has_room)
                if part is None:
                    break
                if path_bytes + part.nbytes > self._room_bytes:
                    part.drop()
                    break
                path.append(self._insert(namespace, path, key, part))
                path[-1].write = Write()
                path_bytes += path[-1].num_bytes
                num_read += path[-1].num_bytes
                self._shrink(self._max_bytes)
                self.has_more = num_read >= self._max_read_bytes and len(path) < len(keys)
        finally:
            self._order(path)

    def _use(self, path: Sequence[_Node]) -> None:
        """Count the blocks of a path as used, and have the disk know and hold its beginning, as far as that fits there.

        What goes beyond would drive out the blocks before it, without which it is worth nothing.
        """
        self._order(path)
        if self._store is None or not path:
            return
        kept = self._kept(self._store, path)
        if not self._offer(self._store, kept) and len(self._unwritten) < MAX_UNWRITTEN_PATHS:
            self._unwritten.append(kept)
        self._store.touch([node.name for node in kept])

    def _kept(self, store: PrefixStore, path: Sequence[_Node]) -> list[_Node]:
        path_bytes = 0
        for index, node in enumerate(path):
            path_bytes += node.num_bytes
            if not store.holds(index + 1, path_bytes):
                return list(path[:index])
        return list(path)

    def _offer(self, store: PrefixStore, path: Sequence[_Node]) -> bool:
        """Have the disk take a path's blocks that it has not; return False where it will take more of them soon."""
        num_bytes = 0
        for node in path:
            if not node.is_held:
                return True  # nor are those behind it
            if node.write is not None and not node.write.has_failed:
                continue
            if num_bytes >= MAX_WRITE_BYTES:
                return False
            node.write = store.put(node.name, node.key, node.part)
            if node.write is None:
                return not store.could_put(node.num_bytes)
            num_bytes += node.num_bytes
        return True

    def _order(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._line.move_to_end(node)

    def _shrink(self, limit_bytes: int) -> None:
        while self.nbytes > limit_bytes and self._line:
            self._drop_first()
            self.evictions_total += 1

    def _drop_first(self) -> None:
        node, _ = self._line.popitem(last=False)
        del node.siblings[node.key]
        if not self._roots[node.namespace]:
            del self._roots[node.namespace]
        self.nbytes -= node.num_bytes
        node.is_held = False
        node.part.drop()


def _keys(token_ids: Sequence[int], max_tokens: int) -> list[_Key]:
    num_blocks = max(0, min(len(token_ids), max_tokens)) // BLOCK_TOKENS
    return [
        tuple(token_ids[start : start + BLOCK_TOKENS]) for start in range(0, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS)
    ]
