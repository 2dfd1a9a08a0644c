"""How many inputs a request may have, and how large its answer gets."""

from __future__ import annotations

from worker.embedding.loaded import LoadedEncoder

MAX_INPUTS = 2048
_FLOAT_BYTES = 4
# What an element of the answer takes beside its values, at most: tags and lengths, its counts and a flag.
ELEMENT_BYTES = 32
# And the answer beside its elements: names, ids, usage and times.
ENVELOPE_BYTES = 1024


def max_inputs(loaded: LoadedEncoder, max_response_bytes: int) -> int:
    """Return how many inputs or documents one request may have: whole vectors of as many fit into an answer.

    Args:
        loaded: the model.
        max_response_bytes: of an answer.
    """
    dimensions = 0 if loaded.embedder is None else loaded.embedder.sizes.full
    return min(MAX_INPUTS, max(1, (max_response_bytes - ENVELOPE_BYTES) // (dimensions * _FLOAT_BYTES + ELEMENT_BYTES)))


def response_bytes(num_vectors: int, num_inputs: int, vector_bytes: int) -> int:
    """Return how large an answer of vectors gets at most."""
    return num_vectors * vector_bytes + num_inputs * ELEMENT_BYTES + ENVELOPE_BYTES
