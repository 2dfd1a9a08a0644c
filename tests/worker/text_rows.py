"""Rows that run on a tiny model without a workload."""

from collections.abc import Sequence as Items

from models.layers.cache import Cache
from models.registry import LoadedModel
from models.step import RowPlan
from worker.batch import Batch
from worker.detokenizer import Detokenizer
from worker.row import Row
from worker.sampling import Sampler
from worker.sequence import Constraint, Sequence, State, TextRequest

MAX_CONTEXT = 1000


def sequence(
    wanted: TextRequest, index: int = 0, leader: Sequence | None = None, constraint: Constraint | None = None
) -> Sequence:
    """Return a sequence whose tokens are bytes."""
    detokenizer = Detokenizer(lambda token_id: bytes([token_id % 256]))
    return Sequence(wanted, detokenizer, MAX_CONTEXT, index=index, leader=leader, constraint=constraint)


def row(cache: Cache, wanted: TextRequest, slot: int | None = None, constraint: Constraint | None = None) -> Row:
    """Return a row, with a slot where one is given."""
    subject = sequence(wanted, constraint=constraint)
    if slot is not None:
        subject.slot = slot
        subject.move(State.PREFILLING)
    stopping = wanted.stopping
    sampler = Sampler(
        wanted.sampling,
        wanted.prompt_ids,
        min_tokens=stopping.min_tokens,
        end_ids=stopping.stop_token_ids,
        top_logprobs=wanted.top_logprobs,
    )
    return Row(subject, cache, lambda: sampler)


def prefill(batch: Batch, rows: Items[Row]) -> None:
    """Compute whole prompts in one step and start the draws of the first tokens."""
    plans = [RowPlan(row.slot, row.sequence.request.prompt_ids, 0, (_last(row),)) for row in rows]
    complete = batch.prefill(rows, plans)
    assert complete == list(rows)
    batch.draw(rows)
    for each in rows:
        each.sequence.move(State.DECODING)


def advance(rows: Items[Row]) -> list[list[int]]:
    """Read the tokens that were drawn and let the sequences take them."""
    found: list[list[int]] = []
    for each in rows:
        drawn = each.take()
        for token in drawn:
            each.sequence.advance(token)
        found.append([token.token_id for token in drawn])
    return found


def ready(loaded: LoadedModel, *wanted: TextRequest) -> tuple[Batch, list[Row], Cache]:
    """Return rows of requests whose prompts are computed."""
    cache = loaded.make_cache(len(wanted))
    batch = Batch(loaded, cache)
    rows = [row(cache, each, slot) for slot, each in enumerate(wanted)]
    prefill(batch, rows)
    return batch, rows, cache


def _last(subject: Row) -> int:
    return len(subject.sequence.request.prompt_ids) - 1
