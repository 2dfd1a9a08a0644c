"""Vectors as they travel: little-endian 32-bit floats."""

import struct

from pomona.v1 import embedding_pb2

_FLOAT_BYTES = 4


def vectors_of(response: embedding_pb2.EmbedResponse) -> list[list[float]]:
    """Return each input's vector."""
    return [
        list(struct.unpack(f"<{len(embedding.values) // _FLOAT_BYTES}f", embedding.values))
        for embedding in response.embeddings
    ]
