"""Cuts what a failure says to a length that fits its status: a path or a text may hold a client's own long words."""


def clipped(text: str, max_bytes: int) -> str:
    """Return `text` as valid UTF-8 of at most `max_bytes`, its end cut off with an ellipsis where it is longer."""
    # A character takes at least a byte, so that no more than these are ever looked at.
    content = text[: max_bytes + 1].encode("utf-8", "replace")
    if len(content) <= max_bytes:
        return content.decode()
    return content[: max_bytes - 3].decode("utf-8", "ignore") + "…"
