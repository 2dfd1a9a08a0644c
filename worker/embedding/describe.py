"""What is said of a model that makes vectors or ranks, from its headers alone; no MLX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pomona.v1 import model_pb2

from models.checkpoint.checkpoint import TextCheckpoint
from models.embedding.embedder import Embedder, for_vectors, read_embedder
from models.embedding.reranker import ARCHITECTURES, NoAnswersError, Reranker
from worker.errors import ModelLoadFailed
from worker.routed_experts import experts_message

OPTION = "task"


def check_no_defaults(defaults: Mapping[str, float] | None) -> None:
    """Refuse defaults of requests of a model that draws no tokens.

    Raises:
        ModelLoadFailed: there are some.
    """
    if defaults:
        raise ModelLoadFailed("a model that generates nothing has no defaults", option="defaults")


def encoder_message(checkpoint: TextCheckpoint, path: Path, *, is_reranker: bool) -> model_pb2.Model:
    """Return the part of a `Model` message that follows from the checkpoint alone.

    Args:
        checkpoint: its headers.
        path: of its folder or file.
        is_reranker: whether it ranks; otherwise it makes vectors.

    Raises:
        CheckpointError: its files ask for what is not computed.
        ModelLoadFailed: it is to rank and cannot.
    """
    message = model_pb2.Model(
        experts=experts_message(checkpoint),
        revision=checkpoint.revision,
        architecture=checkpoint.architecture,
        quantization=str(checkpoint.quantization or ""),
        tasks=[model_pb2.Model.TASK_RERANK if is_reranker else model_pb2.Model.TASK_EMBED],
    )
    if is_reranker:
        read_reranker(checkpoint)
    else:
        embedder = read_embedder(checkpoint, path)
        checkpoint = for_vectors(checkpoint, embedder)
        message.revision = embedder.revision
        message.embedding.CopyFrom(_capabilities(embedder))
    message.limits.max_context_tokens = checkpoint.limits.max_position_embeddings or 0
    return message


def read_reranker(checkpoint: TextCheckpoint) -> Reranker:
    """Return how a checkpoint is asked about documents.

    Raises:
        ModelLoadFailed: it is no reranker that is known.
    """
    if checkpoint.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelLoadFailed(f"task: of {checkpoint.architecture} no reranker is known, of {known} one", option=OPTION)
    try:
        return Reranker(checkpoint.tokenizer())
    except NoAnswersError as error:
        raise ModelLoadFailed(
            f"task: its tokenizer has no token {error}, which a reranker needs", option=OPTION
        ) from error


def _capabilities(embedder: Embedder) -> model_pb2.EmbeddingCapabilities:
    return model_pb2.EmbeddingCapabilities(
        dimensions=embedder.sizes.full,
        reduced_dimensions=embedder.sizes.reduced,
        normalized=embedder.is_normalized,
        per_token=True,
    )
