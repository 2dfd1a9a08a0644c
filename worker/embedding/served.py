"""The loaded model as the service of vectors and rankings uses it."""

from __future__ import annotations

from dataclasses import dataclass

from pomona.v1 import common_pb2

from worker.embedding.inputs import InputMaker
from worker.embedding.loaded import LoadedEncoder


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """What a request needs beside the engine.

    Attributes:
        loaded: what it says of its vectors, or how it is asked.
        inputs: makes tokens of texts.
        resolved: which model answers, exactly.
        max_inputs: of one request.
        max_response_bytes: of an answer.
    """

    loaded: LoadedEncoder
    inputs: InputMaker
    resolved: common_pb2.ResolvedModel
    max_inputs: int
    max_response_bytes: int
