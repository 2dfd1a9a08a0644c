"""Embedding group: computes the inputs of requests for vectors and scores, many in one step of one model.

A tick is one step of up to `step_tokens` tokens, in which inputs of any length stand one behind the other, whoever's
they are: nothing is padded. Where the kernels of the CPU compute, an input's numbers do not depend on the others of its
steps, nor on where it is cut; on the reference path every input has a step of its own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from models.embedding.vectors import Floats, NotFiniteError
from models.errors import ExpertUnreadable
from models.registry import LoadedModel
from models.step import NumericPath
from native import kernels
from worker.chunks import REFERENCE_CHUNK_TOKENS
from worker.claim import Claim
from worker.embedding.encoder import Encoder, KernelBrokenError
from worker.embedding.encoding import Encoding
from worker.embedding.loaded import LoadedEncoder
from worker.embedding.request import EncodeRequest
from worker.embedding.turns import NUM_SLOTS, SHORT_STEPS, Piece, Room, StepBounds, Turns
from worker.errors import InvalidField, WorkerError, incident_of
from worker.events import Completed, Failed, Started, Usage
from worker.histogram import Histogram
from worker.job import Counts, Job, Reporter, RequestView
from worker.pace import Pace
from worker.routed_experts import expert_counts, unreadable
from worker.stats import Rate
from worker.text_settings import TextSettings
from worker.workloads.errors import NotLoadedError

# A request of so many tokens goes before prompts of workers that share the device.
SHORT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """The pieces of one step."""

    pieces: tuple[Piece, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The requests that have a piece in it."""
        return tuple(dict.fromkeys(piece.key for piece in self.pieces))


class EmbeddingWorkload:
    """Computes vectors and scores with one model.

    Args:
        load_model: reads the model on the thread that calls it, reporting progress.
        settings: bounds; those of prompts' cuts hold for inputs.
        clock: monotonic seconds, the engine's.
    """

    def __init__(
        self,
        load_model: Callable[[Callable[[object], None]], LoadedEncoder],
        settings: TextSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_model = load_model
        self._settings = settings
        self._clock = clock
        self._encoder: Encoder | None = None
        self._model: LoadedModel | None = None
        self._turns: Turns | None = None
        self._room_tokens = 0
        self._max_tokens = 0
        self._vocab_size = 0
        self._step = StepBounds(settings.prefill_chunk_tokens, NUM_SLOTS, settings.max_batch_rows)
        self._encodings: dict[str, Encoding] = {}
        self._pace = Pace(settings.prefill_gap_s)
        self._rate = Rate()
        self._queue = Histogram("queue")
        self._tokens_total = 0
        self._step_tokens = 0

    @property
    def max_jobs(self) -> int:
        """How many requests may run and wait at once."""
        return self._settings.max_batch_rows + self._settings.max_queue_requests

    def load(self, report: Callable[[object], None]) -> LoadedEncoder:
        """Read the model and make room."""
        loaded = self._load_model(report)
        model, context = loaded.model, loaded.max_tokens
        self._model = model
        self._max_tokens, self._vocab_size = context, model.text_checkpoint.text.vocab_size
        if model.path is NumericPath.REFERENCE:
            self._step = StepBounds(REFERENCE_CHUNK_TOKENS, 1, 1)
        long_tokens = self._settings.kv_tokens(context, model.kv_sizes.rows_bytes)
        short_tokens = SHORT_STEPS * self._step.num_tokens
        self._room_tokens = short_tokens + long_tokens
        self._turns = Turns(Room(NUM_SLOTS, short_tokens, long_tokens, self._step.num_tokens))
        self._encoder = Encoder(model, model.make_cache(NUM_SLOTS, self._room_tokens), loaded.answers)
        self._encoder.rest()
        kernels.take_failure()  # of whatever was computed before is none of ours
        return loaded

    def admit(self, job: Job[EncodeRequest]) -> None:
        """Queue a request; the service names fields better, before.

        Raises:
            InvalidField: an input is empty, too long, or has a token that the model does not have.
        """
        request = job.request
        self._check(request)
        self._encodings[request.key] = Encoding(job)
        self._waiting.add(request.key, request.priority, [len(ids) for ids in request.inputs])

    def claim(self) -> Claim:
        """Say whether somebody waits for a little, or all that wait brought much."""
        lengths = [encoding.job.request.num_tokens for encoding in self._encodings.values()]
        return Claim.STEADY if lengths and min(lengths) <= SHORT_TOKENS else Claim.BULK

    def plan(self, burst_s: float | None = None) -> EncodePlan | None:
        """Choose the pieces of the next step; while several requests wait, no more of them than is done in a moment."""
        bounds = self._step
        if bounds.num_inputs > 1:
            most = [bounds.num_tokens]
            if len(self._encodings) > 1:
                most.append(self._pace.tokens)
            if burst_s is not None:
                most.append(self._pace.tokens_within(burst_s))
            bounds = replace(bounds, num_tokens=min(most))
        pieces = self._waiting.plan(bounds)
        if not pieces:
            self._ready.rest()
            return None
        return EncodePlan(tuple(pieces))

    def run(self, plan: EncodePlan, reporter: Reporter[EncodeRequest]) -> None:
        """Do one step."""
        began = self._clock()
        self._tell_starts(plan, began, reporter)
        self._step_tokens = sum(piece.count for piece in plan.pieces)
        try:
            self._compute(plan.pieces, reporter)
        except KernelBrokenError as error:
            for key in [key for key, each in self._encodings.items() if each.clock.started is not None]:
                self._fail(key, incident_of(error, "a kernel failed"), reporter)
            raise
        except ExpertUnreadable as error:
            raise unreadable(error) from error
        finally:
            num_tokens, self._step_tokens = self._step_tokens, 0
        seconds = self._clock() - began
        self._tokens_total += num_tokens
        self._rate.add(num_tokens, seconds)
        self._pace.note(num_tokens, seconds)
        reporter.tick()

    def drop(self, key: str) -> Usage:
        """Forget a request and free its slots; nothing where it is forgotten already."""
        encoding = self._encodings.pop(key, None)
        if encoding is None:
            return Usage()
        for slot in self._waiting.remove(key):
            self._ready.release(slot)
        return encoding.usage

    def view(self, job: Job[EncodeRequest]) -> RequestView:
        """Describe a request."""
        request = job.request
        encoding = self._encodings.get(request.key)
        has_started = encoding is not None and encoding.clock.started is not None
        state = "prefilling" if has_started else "queued"
        return RequestView(request.key, request.request_id, state, job.submitted, Usage(request.num_tokens))

    def counts(self) -> Counts:
        """Count requests, tokens and times."""
        encodings = list(self._encodings.values())
        num_running = sum(each.clock.started is not None for each in encodings)
        cache = None if self._encoder is None else self._encoder.cache
        return Counts(
            running=num_running,
            queued=len(encodings) - num_running,
            prompt_tokens_total=self._tokens_total,
            step_tokens=self._step_tokens,
            total_cache_tokens=self._room_tokens,
            used_cache_tokens=0 if cache is None else cache.num_tokens,
            cache_bytes=0 if cache is None else cache.nbytes,
            prefill_tokens_per_second=self._rate.tokens_per_second,
            durations=(self._queue.snapshot(),),
            **expert_counts(None if self._model is None else self._model.experts),
        )

    def recover(self) -> None:
        """Give memory back that a failed step left in MLX's pool."""
        mx.clear_cache()

    def close(self) -> None:
        """Free the model, its cache and MLX's pool."""
        self._encodings.clear()
        if self._model is not None:
            self._model.close()
        self._encoder = self._model = None
        mx.clear_cache()

    @property
    def _ready(self) -> Encoder:
        if self._encoder is None:
            raise NotLoadedError("the model is not loaded")
        return self._encoder

    @property
    def _waiting(self) -> Turns:
        if self._turns is None:
            raise NotLoadedError("the model is not loaded")
        return self._turns

    def _tell_starts(self, plan: EncodePlan, now: float, reporter: Reporter[EncodeRequest]) -> None:
        for encoding in [self._encodings[key] for key in plan.keys]:
            if encoding.clock.started is None:
                encoding.clock.started = now
                self._queue.add(now - encoding.clock.submitted)
                reporter.post(encoding.job, Started(encoding.job.request.num_tokens, 0))
        reporter.flush()

    def _compute(self, pieces: Sequence[Piece], reporter: Reporter[EncodeRequest]) -> None:
        """Compute a step, and tell of the inputs that are done."""
        asked = [self._encodings[piece.key].begin(piece) for piece in pieces]
        found = self._ready.encode(asked)
        for piece, floats in zip(pieces, found, strict=True):
            if (encoding := self._encodings.get(piece.key)) is not None:  # none of one that has just failed
                self._take(encoding, piece, floats, reporter)

    def _take(self, encoding: Encoding, piece: Piece, floats: Floats, reporter: Reporter[EncodeRequest]) -> None:
        try:
            event = encoding.take(piece, floats)
        except (NotFiniteError, WorkerError) as error:
            self._fail(piece.key, error, reporter)
            return
        if not piece.is_last:
            return
        self._waiting.release(piece)
        self._ready.release(piece.slot)
        if event is not None:
            reporter.post(encoding.job, event)
        if encoding.is_complete:
            usage = self.drop(piece.key)
            reporter.post(encoding.job, Completed(usage, encoding.timing(self._clock())))

    def _fail(self, key: str, error: Exception, reporter: Reporter[EncodeRequest]) -> None:
        job = self._encodings[key].job
        answer = error if isinstance(error, WorkerError) else incident_of(error, "request failed")
        reporter.post(job, Failed(answer, self.drop(key)))

    def _check(self, request: EncodeRequest) -> None:
        """Refuse what would make the device read outside its arrays."""
        for index, ids in enumerate(request.inputs):
            if not 1 <= len(ids) <= self._max_tokens:
                raise InvalidField(f"inputs[{index}]", f"from 1 to {self._max_tokens} tokens")
            if int(np.frombuffer(ids, dtype=np.uint32).max()) >= self._vocab_size:
                raise InvalidField(f"inputs[{index}]", f"the model has token ids below {self._vocab_size}")
