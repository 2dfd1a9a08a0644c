"""What an estimate says, for people: where the memory goes, and whether there is enough."""

from __future__ import annotations

from collections.abc import Iterator

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.output import bytes_text, counted
from gateway.cli.sizes import size_option

HEADERS = ("PART", "MEMORY", "WHAT")


def rows(response: model_pb2.EstimateModelResponse) -> Iterator[tuple[str, str, str]]:
    """Yield each part that takes memory, and all together."""
    estimate = response.estimate
    parts = (
        (
            "other weights" if estimate.all_experts_bytes else "weights",
            estimate.weights_bytes,
            f"as they lie in memory; computed in {response.compute_dtype} on {response.device}",
        ),
        ("experts", estimate.experts_bytes, _experts_words(response)),
        (_kv_name(response), estimate.kv_bytes, _kv_words(response)),
        ("earlier prompts", estimate.prefix_cache_bytes, "keys and values kept for later ones, at most"),
        ("adapters", estimate.adapters_bytes, ""),
        ("largest step", estimate.transient_bytes, "what it computes on its way"),
        ("process", estimate.process_bytes, "libraries and tokenizer"),
    )
    has_row = {"experts": estimate.all_experts_bytes > 0}
    yield from ((name, bytes_text(count), words) for name, count, words in parts if has_row.get(name, count > 0))
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


def least_budget(response: model_pb2.EstimateModelResponse) -> Iterator[str]:
    """Yield a line with the smallest budget of experts that could be loaded with; none for a model without them."""
    if response.estimate.least_expert_budget_bytes:
        least = size_option(response.estimate.least_expert_budget_bytes)
        yield f"The smallest budget for its experts is --expert-budget {least}."


def fits(response: model_pb2.EstimateModelResponse) -> bool:
    """Say whether it could be loaded as it is, others unloaded if need be."""
    return response.fits_now or response.fits_after_eviction


def _advice(response: model_pb2.EstimateModelResponse) -> Iterator[str]:
    estimate, options = response.estimate, response.options
    if response.fitting_options:
        yield "It fits with:"
        yield from (f"  {_flags(each)}" for each in response.fitting_options)
    elif response.largest_context_tokens:
        most = response.largest_context_tokens
        yield f"With {counted(options.max_batch_rows, 'row')} a context of {most:,} tokens fits: --context {most}"
    elif estimate.weights_bytes + estimate.experts_bytes + estimate.process_bytes > estimate.budget_bytes:
        yield "The weights alone are too much for it; a smaller checkpoint, or one in fewer bits, may fit."
    elif options.max_batch_rows > 1:
        yield "Fewer rows take less: --rows 1"
    else:
        yield "Not even the shortest context fits."


def _flags(options: model_pb2.LoadOptions) -> str:
    """Return options as they are given to `fit` and `load`."""
    word = output.enum_word(model_pb2.ExpertsMode.Name, options.experts_mode, "EXPERTS_MODE_")
    given = (
        ("--experts", word if options.experts_mode else ""),
        ("--expert-budget", _rounded_down(options.expert_budget_bytes)),
        ("--max-batch-rows", str(options.max_batch_rows or "")),
        ("--context-tokens", str(options.context_tokens or "")),
    )
    return " ".join(f"{flag} {value}" for flag, value in given if value)


def _rounded_down(num_bytes: int) -> str:
    """Return a size that is no larger, in three digits or so; empty for none."""
    unit, power = next(
        ((unit, power) for unit, power in (("G", 9), ("M", 6), ("k", 3)) if num_bytes >= 10**power), ("", 0)
    )
    return f"{num_bytes // 10 ** max(0, power - 2) / 10 ** min(2, power):g}{unit}" if num_bytes else ""


def _experts_words(response: model_pb2.EstimateModelResponse) -> str:
    everything = bytes_text(response.estimate.all_experts_bytes)
    match response.options.experts_mode:
        case model_pb2.EXPERTS_MODE_SLAB:
            return _slab_words(response.estimate, everything)
        case model_pb2.EXPERTS_MODE_MAPPED:
            return f"{everything} are mapped from the pack; here what of them has to be converted"
        case _:
            return "all of them; --experts slab has fewer in memory"


def _slab_words(estimate: model_pb2.MemoryEstimate, everything: str) -> str:
    room, total = estimate.slab_experts, estimate.total_experts
    if not total:  # a server that does not tell
        return f"slabs for some of {everything}; the others are read when they are needed"
    if room < total:
        return f"slabs with room for {room:,} of {total:,} experts, {everything}; the others are read when needed"
    return f"slabs with room for all {total:,} experts, and what these are read through; --experts resident is faster"


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
    return f"{words}; kv_bytes has room for {whole} at that length at once, or for more that are shorter"
