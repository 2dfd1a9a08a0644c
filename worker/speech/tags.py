"""The languages of Whisper by the tags of BCP-47 that clients are told."""

from __future__ import annotations

from collections.abc import Mapping

# Whisper has the subtag that ISO 639 gave up.
_TAGS: Mapping[str, str] = {"jw": "jv"}


def tag_of(code: str) -> str:
    """Return the tag of a language of the model; an empty code stays empty."""
    return _TAGS.get(code, code)
