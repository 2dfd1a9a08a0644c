"""The bytes of a request on their way to a worker."""


class Body:
    """Gives its bytes away once: the library's call keeps what it was given for as long as it lasts."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: bytes) -> None:
        """Hold the parts of the request until they are taken; they are put together then, and not before."""
        self._parts = parts

    def take(self) -> bytes:
        """Return the bytes and hold them no more."""
        parts, self._parts = self._parts, ()
        return b"".join(parts)
