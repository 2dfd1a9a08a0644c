"""Finds stop strings in streamed text and says how much of the text is safe to send.

An automaton after Aho and Corasick (1975, doi:10.1145/360825.360855) reads each character once, so neither many stop
strings nor a long output make a token slower. The text of its state is the longest suffix that begins some stop string:
exactly what must be held back.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stop string is complete: `text` is what may still be sent before it."""

    text: str
    stop_string: str


@dataclass(slots=True)
class _Node:
    depth: int
    next: "dict[str, _Node]" = field(default_factory=dict[str, "_Node"])
    fallback: "_Node | None" = None
    match: str | None = None


class StopMatcher:
    """Watches the text of one sequence for stop strings.

    The stop string that is complete first wins; of several that end at the same character, the longest. Neither depends
    on how the text is cut into pieces.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self._root = _automaton([stop for stop in stop_strings if stop])
        self._node = self._root
        self._held = ""

    @property
    def held(self) -> str:
        """The end of the text that is not sent yet: a proper prefix of some stop string."""
        return self._held

    def add(self, text: str, *, may_stop: bool = True) -> str | Stopped:
        """Read new text.

        Args:
            text: what follows on what was read.
            may_stop: whether a stop string that is complete within it counts; else it is text like any other.

        Returns:
            The text that can be no part of a stop string any more, or `Stopped` once one is complete. Nothing may be
            added after that.
        """
        node = self._node
        if node is self._root and node.next.keys().isdisjoint(text):
            return text
        for position, character in enumerate(text):
            node = self._follow(node, character)
            if node.match is None:
                continue
            if may_stop:
                read = self._held + text[: position + 1]
                self._held = ""
                return Stopped(read[: len(read) - len(node.match)], node.match)
            if not node.next and node.fallback is not None:
                node = node.fallback  # nothing longer begins with it, so nothing of it is held back for that
        read = self._held + text
        self._node = node
        self._held = read[len(read) - node.depth :]
        return read[: len(read) - node.depth]

    def finish(self) -> str:
        """Return the held text when no more follows."""
        held, self._held = self._held, ""
        return held

    def _follow(self, node: _Node, character: str) -> _Node:
        current: _Node | None = node
        while current is not None:
            if (child := current.next.get(character)) is not None:
                return child
            current = current.fallback
        return self._root


def _automaton(stop_strings: list[str]) -> _Node:
    root = _Node(0)
    for stop in stop_strings:
        node = root
        for character in stop:
            node = node.next.setdefault(character, _Node(node.depth + 1))
        node.match = stop
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Set each node's fallback, the longest proper suffix that is a node too, and the longest match that ends there."""
    level = list(root.next.values())
    for node in level:
        node.fallback = root
    while level:
        following: list[_Node] = []
        for node in level:
            for character, child in node.next.items():
                child.fallback = _fallback_of(node, character, root)
                child.match = child.match or child.fallback.match
                following.append(child)
        level = following


def _fallback_of(parent: _Node, character: str, root: _Node) -> _Node:
    current = parent.fallback
    while current is not None:
        if (child := current.next.get(character)) is not None:
            return child
        current = current.fallback
    return root
