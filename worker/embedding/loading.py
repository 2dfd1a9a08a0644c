"""From the settings to a model that makes vectors or ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pomona.v1 import model_pb2

from models.checkpoint.checkpoint import open_checkpoint
from models.embedding.embedder import for_vectors, read_embedder
from models.registry import LoadProgress
from worker.embedding.bounds import max_inputs
from worker.embedding.describe import check_no_defaults, encoder_message, read_reranker
from worker.embedding.loaded import LoadedEncoder
from worker.model_loading import check_serves, load_model_of, note_runtime, text_settings
from worker.settings import WorkerSettings
from worker.workloads.embedding import EmbeddingWorkload


def make_embedding_workload(settings: WorkerSettings, *, is_reranker: bool) -> EmbeddingWorkload:
    """Return the workload that loads and runs the model of the settings.

    Args:
        settings: of this worker.
        is_reranker: whether it ranks; otherwise it makes vectors.
    """
    bounds = text_settings(settings)
    path = Path(settings.checkpoint)

    def load(report: Callable[[object], None]) -> LoadedEncoder:
        report(LoadProgress("headers", 0, 0))
        check_no_defaults(settings.defaults)
        checkpoint = open_checkpoint(path)
        check_serves(checkpoint, settings.context_tokens)
        reranker = read_reranker(checkpoint) if is_reranker else None
        embedder = None if is_reranker else read_embedder(checkpoint, path)
        if embedder is not None:
            checkpoint = for_vectors(checkpoint, embedder)
        context = bounds.context_tokens(checkpoint.limits.max_position_embeddings)
        return LoadedEncoder(load_model_of(checkpoint, settings, report), context, embedder, reranker)

    return EmbeddingWorkload(load, bounds)


def loaded_encoder_message(loaded: LoadedEncoder, settings: WorkerSettings) -> model_pb2.Model:
    """Return the loaded model with its limits and how it runs."""
    checkpoint, path = loaded.model.text_checkpoint, Path(settings.checkpoint)
    message = encoder_message(checkpoint, path, is_reranker=loaded.reranker is not None)
    note_runtime(message, loaded.model, loaded.max_tokens, settings)
    message.limits.max_embed_inputs = max_inputs(loaded, settings.max_response_bytes)
    return message
