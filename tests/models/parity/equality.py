"""Bit-equality of the reference path with mlx-lm."""

from pathlib import Path

import mlx.core as mx

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath
from tests.models.stepping import Choices


def load_path(path: Path, numeric_path: NumericPath = NumericPath.REFERENCE) -> LoadedModel:
    return load(open_checkpoint(path), numeric_path, lambda _: None)


def assert_bit_equal(ours: Choices, theirs: Choices) -> None:
    """Assert that all tokens, and all logits that they were taken from, are the same."""
    assert [token for token, _ in ours] == [token for token, _ in theirs]
    pairs = zip(ours, theirs, strict=True)
    assert [index for index, (our, their) in enumerate(pairs) if not mx.array_equal(our[1], their[1])] == []
