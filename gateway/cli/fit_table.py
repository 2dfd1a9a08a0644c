"""What an estimate says, for people: where the memory goes, and whether there is enough."""

from __future__ import annotations

from collections.abc import Iterator

from pomona.v1 import model_pb2

from gateway.cli.output import bytes_text, counted

HEADERS = ("PART", "MEMORY", "WHAT")


def rows(response: model_pb2.EstimateModelResponse) -> Iterator[tuple[str, str, str]]:
    """Yield each part that takes memory, and all together."""
    estimate = response.estimate
    parts = (
        (
            "weights",
            estimate.weights_bytes,
            f"as they lie in memory; computed in {response.compute_dtype} on {response.device}",
        ),
        ("experts", estimate.experts_bytes, "could also be read as they are needed"),
        (_kv_name(response), estimate.kv_bytes, _kv_words(response)),
        ("earlier prompts", estimate.prefix_cache_bytes, "keys and values kept for later ones, at most"),
        ("adapters", estimate.adapters_bytes, ""),
        ("largest step", estimate.transient_bytes, "what it computes on its way"),
        ("process", estimate.process_bytes, "libraries and tokenizer"),
    )
    yield from ((name, bytes_text(count), words) for name, count, words in parts if count)
    yield "total", bytes_text(estimate.total_bytes), f"of {bytes_text(estimate.budget_bytes)} that models may take here"


def verdict(response: model_pb2.EstimateModelResponse) -> Iterator[str]:
    """Yield lines that say whether it fits, and what would."""
    estimate = response.estimate
    if response.fits_now:
        yield "It fits now."
    elif response.fits_after_eviction:
        yield f"It fits once idle models are unloaded: {', '.join(response.would_evict)}."
    elif estimate.total_bytes <= estimate.budget_bytes:
        yield "It fits this machine, but not beside what is running now."
    else:
        over = bytes_text(estimate.total_bytes - estimate.budget_bytes)
        yield f"It does not fit: it takes {over} more than models may take here."
        yield from _advice(response)
        return
    if response.largest_context_tokens:
        rows_text = counted(response.options.max_batch_rows, "row")
        yield f"The largest context that fits with {rows_text} is {response.largest_context_tokens:,} tokens."


def fits(response: model_pb2.EstimateModelResponse) -> bool:
    """Say whether it could be loaded as it is, others unloaded if need be."""
    return response.fits_now or response.fits_after_eviction


def _advice(response: model_pb2.EstimateModelResponse) -> Iterator[str]:
    estimate, options = response.estimate, response.options
    if response.largest_context_tokens:
        most = response.largest_context_tokens
        yield f"With {counted(options.max_batch_rows, 'row')} a context of {most:,} tokens fits: --context {most}"
    elif estimate.weights_bytes + estimate.experts_bytes + estimate.process_bytes > estimate.budget_bytes:
        yield "The weights alone are too much for it; a smaller checkpoint, or one in fewer bits, may fit."
    elif options.max_batch_rows > 1:
        yield "Fewer rows take less: --rows 1"
    else:
        yield "Not even the shortest context fits."


def _is_speech(response: model_pb2.EstimateModelResponse) -> bool:
    return not response.options.context_tokens


def _kv_name(response: model_pb2.EstimateModelResponse) -> str:
    return "speech and text" if _is_speech(response) else "keys and values"


def _kv_words(response: model_pb2.EstimateModelResponse) -> str:
    estimate, options = response.estimate, response.options
    each = bytes_text(estimate.kv_row_bytes)
    if _is_speech(response):
        return f"{counted(options.max_batch_rows, 'window')} of 30 s at once, {each} each"
    scheme = "" if options.kv_scheme in ("", "none") else f", kept as {options.kv_scheme}"
    words = f"{counted(options.max_batch_rows, 'row')} of {options.context_tokens:,} tokens, {each} each{scheme}"
    if estimate.kv_bytes >= options.max_batch_rows * estimate.kv_row_bytes:
        return words
    whole = estimate.kv_bytes // max(1, estimate.kv_row_bytes)
    return f"{words}; room for {whole} at that length at once, or for more that are shorter"
