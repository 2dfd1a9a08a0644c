"""What would make a text model fit that does not: other options of its load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pomona.v1 import model_pb2

from models.checkpoint.fit import largest_context
from models.experts.options import ExpertsMode
from worker.expert_choice import ExpertsWish
from worker.routed_experts import note_experts
from worker.text_fit import TextFit


def fitting_options(model: TextFit, context_tokens: int, most_tokens: int) -> Iterator[model_pb2.LoadOptions]:
    """Yield options with which a model would fit its budget.

    Other places for its experts come first, with a shorter context where they need that too; then fewer rows, then a
    shorter context.

    Args:
        model: that does not fit.
        context_tokens: of one row.
        most_tokens: the longest context that it may have.
    """
    is_budgeted = model.wish.budget_bytes is not None
    for wish in _other_wishes(model, context_tokens):
        yield from _with_experts(replace(model, wish=wish), context_tokens, is_budgeted=is_budgeted)
    if rows := _largest_rows(model, context_tokens):
        yield model_pb2.LoadOptions(max_batch_rows=rows)
    if tokens := _largest_context(model, most_tokens):
        yield model_pb2.LoadOptions(context_tokens=tokens)


def _other_wishes(model: TextFit, context_tokens: int) -> Iterator[ExpertsWish]:
    now = model.experts(context_tokens)
    if now is None:
        return
    if now.mode is not ExpertsMode.SLAB or model.wish.budget_bytes is not None:
        yield ExpertsWish(ExpertsMode.SLAB)
    if model.has_pack and now.mode is not ExpertsMode.MAPPED:
        yield ExpertsWish(ExpertsMode.MAPPED)


def _with_experts(model: TextFit, context_tokens: int, *, is_budgeted: bool) -> Iterator[model_pb2.LoadOptions]:
    """Yield a place for experts with the context that it needs, if any does; a budget where one was set."""
    options = model_pb2.LoadOptions()
    if not _fits(model, context_tokens):
        context_tokens = _largest_context(model, context_tokens)
        options.context_tokens = context_tokens
    choice = model.experts(context_tokens) if context_tokens else None
    if choice is not None:
        note_experts(options, choice.mode, choice.budget_bytes)
        if not is_budgeted:
            options.ClearField("expert_budget_bytes")
        yield options


def _largest_rows(model: TextFit, context_tokens: int) -> int:
    """Return the most rows, fewer than there are, with which it fits; 0: none."""
    tried = (replace(model, bounds=replace(model.bounds, max_batch_rows=rows)) for rows in _fewer(model))
    return next((each.bounds.max_batch_rows for each in tried if _fits(each, context_tokens)), 0)


def _fewer(model: TextFit) -> range:
    return range(model.bounds.max_batch_rows - 1, 0, -1)


def _largest_context(model: TextFit, most_tokens: int) -> int:
    return largest_context(model.total_bytes, most_tokens, model.budget_bytes or 0)


def _fits(model: TextFit, context_tokens: int) -> bool:
    return model.total_bytes(context_tokens) <= (model.budget_bytes or 0)
