"""Callers with tokens, for servers that want them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.principal import SCOPES
from gateway.token_file import TokenEntry, change_tokens, new_token

Metadata = tuple[tuple[str, str], ...]


def grant(path: Path, name: str, scopes: Sequence[str] = SCOPES, **facts: Any) -> Metadata:
    """Put a token into a file and return the metadata of its caller's calls; `facts` are an entry's."""
    made = new_token()
    told: dict[str, Any] = {"sha256": made.sha256, "group": name, "created": datetime.now(UTC), **facts}
    entry = TokenEntry(name=name, id=made.id, scopes=tuple(scopes), **told)
    change_tokens(path, lambda entries: [*entries, entry])
    return bearer(made.text)


def bearer(token: str) -> Metadata:
    """Return the metadata that carries a token."""
    return (("authorization", f"Bearer {token}"),)


def revoke(path: Path, name: str) -> None:
    """Take a caller's token out of a file."""
    change_tokens(path, lambda entries: [one for one in entries if one.name != name])


def in_the_past() -> datetime:
    """Return a moment that is over."""
    return datetime.now(UTC) - timedelta(seconds=1)
