"""Text generation: runs sequences through the steps of one model.

A tick is one decode step for each running row, each a forward of its own, so that a row's numbers depend on no other;
then at most one chunk of one prompt.

A decode step is pipelined: constraints work while the device computes the forward of the token that they are told of.
MLX's CPU backend returns from starting a forward only when most of it is computed (measured with 0.32.4: all but about
ten operations), so there the tokens are read and sent first, and constraints work beside the engine's thread. Elsewhere
starting returns at once and comes before reading, so that the device does not wait for the host.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx

from models.layers.cache import KVCache
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath
from worker.errors import ContextTooLong, InvalidField, incident_of
from worker.events import Completed, Failed, PrefillProgress, SequenceFinished, Started, Usage
from worker.job import Counts, Job, Reporter, RequestView
from worker.row import LogitsNotFiniteError, Row
from worker.scheduler import REFERENCE_CHUNKING, Chunk, Chunking, Scheduler, TextPlan
from worker.sequence import Constraint, Sequence, State, TextRequest

UNKNOWN_CONTEXT_TOKENS = 2048  # where neither the settings nor the checkpoint say


class NotLoadedError(RuntimeError):
    """Raised when a workload is used before its load."""


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Bounds of a text workload.

    Attributes:
        max_batch_rows: sequences that run at once.
        max_queue_requests: sequences that may wait besides.
        prefill_chunk_tokens: of a prompt in one step on the fast path; the reference path always takes 2,048.
        max_context_tokens: prompt and output together; None: what the checkpoint was trained for.
    """

    max_batch_rows: int = 4
    max_queue_requests: int = 64
    prefill_chunk_tokens: int = 512
    max_context_tokens: int | None = None


def _unconstrained(request: TextRequest) -> Constraint | None:  # noqa: ARG001 (the shape of a constraint maker)
    return None


class TextWorkload:
    """Generates text with one model.

    Args:
        load_model: reads the model on the thread that calls it, reporting progress.
        settings: bounds.
        clock: monotonic seconds, the engine's.
        constrain: makes what restricts the tokens of a request; None: nothing does.
    """

    def __init__(
        self,
        load_model: Callable[[Callable[[LoadProgress], None]], LoadedModel],
        settings: TextSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        constrain: Callable[[TextRequest], Constraint | None] = _unconstrained,
    ) -> None:
        self._load_model = load_model
        self._settings = settings
        self._clock = clock
        self._constrain = constrain
        self._loaded: _Loaded | None = None
        self._scheduler = Scheduler(settings.max_batch_rows, Chunking(settings.prefill_chunk_tokens))
        self._entries: dict[str, _Entry] = {}
        self._prompt_tokens_total = 0
        self._completion_tokens_total = 0
        self._step_tokens = 0

    @property
    def max_jobs(self) -> int:
        """How many requests may run and wait at once."""
        return self._settings.max_batch_rows + self._settings.max_queue_requests

    @property
    def max_context_tokens(self) -> int:
        """Prompt and output together; known once loaded."""
        return self._ready.max_context_tokens

    def load(self, report: Callable[[object], None]) -> LoadedModel:
        """Read the model and make its cache."""
        loaded = self._load_model(report)
        if loaded.path is NumericPath.REFERENCE:
            self._scheduler = Scheduler(self._settings.max_batch_rows, REFERENCE_CHUNKING)
        self._loaded = _Loaded(
            loaded,
            loaded.model.make_cache(self._settings.max_batch_rows),
            _context_tokens(self._settings.max_context_tokens, loaded.checkpoint.limits.max_position_embeddings),
            int(loaded.checkpoint.config["vocab_size"]),
        )
        return loaded

    def admit(self, job: Job[TextRequest]) -> None:
        """Queue a request.

        Raises:
            InvalidField: no prompt, or a token id that the model does not have.
            ContextTooLong: the prompt leaves no room for output.
        """
        ready, request = self._ready, job.request
        _check(request, ready)
        tokenizer = ready.model.tokenizer
        sequence = Sequence(
            request,
            tokenizer.token_bytes,
            ready.max_context_tokens,
            strip_leading_space=tokenizer.strips_leading_space,
            constraint=self._constrain(request),
        )
        sequence.clock.submitted = job.submitted
        row = Row(sequence, ready.model.model, ready.cache, ready.model.path)
        self._entries[request.key] = _Entry(job, row)
        self._scheduler.add(sequence)

    def plan(self) -> TextPlan | None:
        """Choose the rows of the next tick; a row whose outbox is full pauses."""
        return self._scheduler.plan(lambda sequence: self._entries[sequence.key].job.outbox.is_full)

    def run(self, plan: TextPlan, reporter: Reporter[TextRequest]) -> None:
        """Do one tick."""
        try:
            self._step_tokens = len(plan.decode)
            self._decode([self._entries[sequence.key] for sequence in plan.decode], reporter)
            if plan.prefill is not None:
                self._step_tokens = plan.prefill.row.num_tokens
                self._prefill(plan.prefill, reporter)
                reporter.tick()
        finally:
            self._step_tokens = 0

    def drop(self, key: str) -> Usage:
        """Forget a request and free its slot; nothing where it is forgotten already."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return Usage()
        sequence = entry.row.sequence
        if sequence.slot is not None:
            self._ready.cache.release(sequence.slot)
        self._scheduler.remove(sequence)
        return sequence.usage

    def view(self, job: Job[TextRequest]) -> RequestView:
        """Describe a request."""
        entry = self._entries.get(job.request.key)
        if entry is None:
            usage = Usage(len(job.request.prompt_ids))
            return RequestView(job.request.key, job.request.request_id, State.QUEUED.value, job.submitted, usage)
        sequence = entry.row.sequence
        return RequestView(sequence.key, sequence.request_id, sequence.state.value, job.submitted, sequence.usage)

    def counts(self) -> Counts:
        """Count sequences and tokens."""
        return Counts(
            self._scheduler.num_running,
            self._scheduler.num_waiting,
            self._prompt_tokens_total,
            self._completion_tokens_total,
            self._step_tokens,
        )

    def recover(self) -> None:
        """Give memory back that a failed tick left in MLX's pool."""
        mx.clear_cache()

    def close(self) -> None:
        """Free the model, its cache and MLX's pool."""
        self._entries.clear()
        self._loaded = None
        mx.clear_cache()

    @property
    def _ready(self) -> "_Loaded":
        if self._loaded is None:
            raise NotLoadedError("the model is not loaded")
        return self._loaded

    def _decode(self, entries: list["_Entry"], reporter: Reporter[TextRequest]) -> None:
        starts_at_once = self._ready.model.device != "cpu"
        for entry in entries:
            if not entry.row.sequence.is_last_token_pending():
                entry.row.build()
                if starts_at_once:
                    entry.row.start()
        drawn = [(entry.row, token_id) for entry in entries if (token_id := self._read(entry, reporter)) is not None]
        reporter.flush()
        constrained = [(row.sequence.constraint, token_id) for row, token_id in drawn if row.sequence.constraint]
        masks = reporter.aside(partial(_advance_all, constrained)) if constrained else None
        if not starts_at_once:
            for row, _ in drawn:
                row.start()
        left = iter(masks.result() if masks else [])
        for row, token_id in drawn:
            row.accept(token_id)
            row.sample(next(left) if row.sequence.constraint else None)

    def _read(self, entry: "_Entry", reporter: Reporter[TextRequest]) -> int | None:
        """Read a row's token and tell its reader; return it where the row goes on."""
        job, sequence = entry.job, entry.row.sequence
        reporter.tick()
        try:
            token_id = entry.row.read()
        except LogitsNotFiniteError as error:
            answer = incident_of(error, "logits are not finite")
            reporter.post(job, Failed(answer, self.drop(sequence.key)))
            return None
        self._completion_tokens_total += 1
        if sequence.clock.first_token is None:
            sequence.clock.first_token = self._clock()
        advance = sequence.advance(token_id)
        if advance.delta is not None:
            reporter.post(job, advance.delta)
        if advance.finished is None:
            return token_id
        self._finish(entry, advance.finished, reporter)
        return None

    def _finish(self, entry: "_Entry", finished: SequenceFinished, reporter: Reporter[TextRequest]) -> None:
        sequence = entry.row.sequence
        usage = self.drop(sequence.key)
        reporter.post(entry.job, finished)
        reporter.post(entry.job, Completed(usage, sequence.clock.timing(self._clock())))

    def _prefill(self, chunk: Chunk, reporter: Reporter[TextRequest]) -> None:
        sequence, entry = chunk.sequence, self._entries[chunk.sequence.key]
        num_prompt_tokens = len(sequence.request.prompt_ids)
        if sequence.clock.started is None:
            sequence.clock.started = self._clock()
            reporter.post(entry.job, Started(num_prompt_tokens, sequence.request.sampling.seed))
            reporter.flush()
        entry.row.prefill(chunk.row)
        self._prompt_tokens_total += chunk.row.num_tokens
        if sequence.request.prefill_progress:
            reporter.post(entry.job, PrefillProgress(sequence.prefilled, num_prompt_tokens))
        if sequence.prefilled == num_prompt_tokens:
            entry.row.sample(None if sequence.constraint is None else sequence.constraint.mask())


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: LoadedModel
    cache: KVCache
    max_context_tokens: int
    vocab_size: int


@dataclass(slots=True)
class _Entry:
    job: Job[TextRequest]
    row: Row = field(repr=False)


def _advance_all(constrained: list[tuple[Constraint, int]]) -> list[Items[bool] | None]:
    """Tell each constraint its token and return what it allows next."""
    masks: list[Items[bool] | None] = []
    for constraint, token_id in constrained:
        constraint.advance(token_id)
        masks.append(constraint.mask())
    return masks


def _context_tokens(wanted: int | None, trained: int | None) -> int:
    bounds = [bound for bound in (wanted, trained) if bound is not None]
    return min(bounds) if bounds else UNKNOWN_CONTEXT_TOKENS


def _check(request: TextRequest, ready: _Loaded) -> None:
    """Refuse what would make the device read outside its arrays; the service names fields better, before."""
    if not request.prompt_ids:
        raise InvalidField("spec", "the prompt has no tokens")
    if len(request.prompt_ids) >= ready.max_context_tokens:
        raise ContextTooLong(len(request.prompt_ids), ready.max_context_tokens)
    if max(request.prompt_ids) >= ready.vocab_size or min(request.prompt_ids) < 0:
        raise InvalidField("spec.token_ids", f"the model has token ids below {ready.vocab_size}")
    if any(not 0 <= token_id < ready.vocab_size for token_id in request.sampling.logit_bias):
        raise InvalidField("spec.sampling.logit_bias", f"the model has token ids below {ready.vocab_size}")
