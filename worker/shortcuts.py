"""Reads what may spare a request work and changes nothing in its text: the prefix cache, and tokens guessed ahead."""

from dataclasses import dataclass

from pomona.v1 import generation_pb2 as pb

from worker.errors import InvalidField, UnsupportedOption

MAX_CACHE_SALT_BYTES = 128
MAX_DRAFT_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """What a request takes of them.

    Attributes:
        bypass_prefix_cache: it neither uses nor leaves anything there.
        cache_salt: only the caller's requests of an equal one share.
        max_draft_tokens: guessed ahead from the text so far, at most; 0: none.
    """

    bypass_prefix_cache: bool = False
    cache_salt: str = ""
    max_draft_tokens: int = 0


def read_shortcuts(spec: pb.GenerationSpec, max_draft_tokens: int = MAX_DRAFT_TOKENS) -> Shortcuts:
    """Check the cache options and the speculation of a request.

    Args:
        spec: of the request.
        max_draft_tokens: what the model guesses ahead at most; 0: it cannot.

    Raises:
        InvalidField: a value is out of range or contradicts another.
        UnsupportedOption: it asks for guesses where the model makes none.
    """
    salt = spec.cache.cache_salt
    if len(salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidField("spec.cache.cache_salt", f"at most {MAX_CACHE_SALT_BYTES} bytes")
    return Shortcuts(spec.cache.bypass_prefix_cache, salt, _read_draft_tokens(spec.speculation, max_draft_tokens))


def _read_draft_tokens(message: pb.SpeculationOptions, limit: int) -> int:
    """Return how many tokens to guess: a number alone asks for guesses, and nothing at all for none."""
    path = "spec.speculation"
    asked = message.max_draft_tokens if message.HasField("max_draft_tokens") else None
    if asked is not None and asked > MAX_DRAFT_TOKENS:
        raise InvalidField(f"{path}.max_draft_tokens", f"from 0 to {MAX_DRAFT_TOKENS}")
    if message.HasField("enabled"):
        if message.enabled and asked == 0:
            raise InvalidField(f"{path}.max_draft_tokens", f"from 1 to {MAX_DRAFT_TOKENS} where enabled is true")
        if not message.enabled and asked:
            raise InvalidField(f"{path}.max_draft_tokens", "0 where enabled is false")
    wanted = (MAX_DRAFT_TOKENS if message.enabled else 0) if asked is None else asked
    if wanted and not limit:
        raise UnsupportedOption(path)
    return min(wanted, limit)
