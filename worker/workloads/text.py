"""Text group: runs sequences through the steps of one model.

A tick is one decode step for all rows that decode, then one step of prompt chunks. A row's numbers do not depend on the
others of its step where the kernels of the CPU compute; on the reference path every row has a step of its own.

A decode step is pipelined: constraints work while the device computes the forward of the token that they are told of.
MLX's CPU backend returns from starting a forward only when most of it is computed (measured with 0.32.4: all but about
ten operations), so there the tokens are read and sent first, and constraints work beside the engine's thread. Elsewhere
starting returns at once and comes before reading, so that the device does not wait for the host.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import mlx.core as mx

from models.blocks import Part
from models.errors import ExpertUnreadable
from models.registry import LoadedModel, LoadProgress
from models.step import NumericPath
from native import kernels
from worker.chunks import REFERENCE_CHUNKING, Chunk, Chunking
from worker.claim import Claim
from worker.errors import AdapterIncompatible, WorkerError, incident_of
from worker.events import Completed, Failed, PrefillProgress, Started, Usage, Waiting
from worker.group import SequenceGroup
from worker.inquiry import Inquiry
from worker.job import Counts, Job, Reporter, RequestView
from worker.loaded_text import LoadedText
from worker.pace import Pace
from worker.places import PlaceWatch
from worker.routed_experts import expert_counts, unreadable
from worker.row import KernelFailedError, LogitsNotFiniteError, Row
from worker.scheduler import Scheduler, TextPlan
from worker.sequence import Advance, Sequence, State, TextRequest, TokenNotAllowedError
from worker.stats import TextStats
from worker.text_settings import TextSettings
from worker.workloads.errors import NotLoadedError

# A prompt of so many tokens goes before longer ones of workers that share the device.
SHORT_TOKENS = 128


class TextWorkload:
    """Generates text with one model.

    Args:
        load_model: reads the model on the thread that calls it, reporting progress.
        settings: bounds.
        clock: monotonic seconds, the engine's.
    """

    def __init__(
        self,
        load_model: Callable[[Callable[[LoadProgress], None]], LoadedModel],
        settings: TextSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_model = load_model
        self._settings = settings
        self._clock = clock
        self._loaded: LoadedText | None = None
        self._scheduler = Scheduler(settings.max_batch_rows, Chunking(settings.prefill_chunk_tokens))
        self._groups: dict[str, SequenceGroup] = {}
        # What there was no room for; not tried again until somebody has left.
        self._too_large: Sequence | None = None
        self._places = PlaceWatch(clock)
        self._news: list[tuple[str, int]] = []  # of places, for readers that want them
        self._is_reading = False  # whether known blocks of a prompt are still on the disk
        self._stats = TextStats()
        self._pace = Pace(settings.prefill_gap_s)

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
        self._loaded = LoadedText.of(loaded, self._settings)
        is_reference = loaded.path is NumericPath.REFERENCE
        chunking = REFERENCE_CHUNKING if is_reference else Chunking(self._settings.prefill_chunk_tokens)
        self._scheduler = Scheduler(self._loaded.cache.num_slots, chunking)
        self._loaded.rest()  # reading left behind what nothing needs any more
        kernels.take_failure()  # of whatever was computed before is none of ours
        return loaded

    def admit(self, job: Job[TextRequest]) -> None:
        """Queue a request.

        Raises:
            InvalidField: no prompt, or a token id that the model does not have.
            ContextTooLong: the prompt leaves no room for output.
        """
        ready, request = self._ready, job.request
        ready.check(request)
        rows = ready.rows(request)
        self._groups[request.key] = SequenceGroup(job, rows)
        for row in rows:
            self._scheduler.add(row.sequence)
        if request.waiting_events:
            self._places.add(rows[0].sequence)

    def claim(self) -> Claim:
        """Say whether a stream is running or a prompt is short, or there are long prompts alone."""
        is_short = any(len(group.job.request.prompt_ids) <= SHORT_TOKENS for group in self._groups.values())
        return Claim.STEADY if is_short or self._scheduler.is_decoding else Claim.BULK

    def plan(self, burst_s: float | None = None) -> TextPlan | None:
        """Choose the rows of the next tick; a row whose outbox is full pauses."""
        self._is_reading = False
        most = self._most_tokens(burst_s)
        plan = self._scheduler.plan(lambda sequence: self._of(sequence).job.outbox.is_full, self._start, *most)
        self._news = self._places.changed(self._scheduler.waiting_places)
        if plan is None and (self._is_reading or self._news):
            return TextPlan((), ())  # no step, and yet something to do: the next tick reads on
        if plan is None and not self._groups:
            if self._ready.prefixes.write_on(is_idle=True):
                return TextPlan((), ())
            self._ready.rest()
        return plan

    def run(self, plan: TextPlan, reporter: Reporter[TextRequest]) -> None:
        """Do one tick."""
        for key, place in self._news:
            reporter.post(self._groups[key].job, Waiting(place))
        try:
            if plan.decode:
                self._stats.step_tokens = len(plan.decode)
                self._decode([self._of(sequence).row(sequence) for sequence in plan.decode], reporter)
            # A sequence of a request that has just failed is gone.
            if chunks := [chunk for chunk in plan.prefill if chunk.sequence.slot is not None]:
                self._stats.step_tokens = sum(chunk.row.num_tokens for chunk in chunks)
                self._prefill(chunks, reporter)
            self._ready.prefixes.write_on()
        except KernelFailedError as error:
            self._fail_begun(incident_of(error, "a kernel failed"), reporter)
            raise
        except ExpertUnreadable as error:
            raise unreadable(error) from error
        finally:
            self._stats.step_tokens = 0

    def drop(self, key: str) -> Usage:
        """Forget a request and free its slots; nothing where it is forgotten already."""
        group = self._groups.pop(key, None)
        if group is None:
            return Usage()
        self._places.remove(key)
        for row in group.rows:
            if row.sequence.state is not State.ENDED:
                self._release(row)
        group.drop_shared()
        return group.usage

    def view(self, job: Job[TextRequest]) -> RequestView:
        """Describe a request."""
        request = job.request
        group = self._groups.get(request.key)
        if group is None:
            state, usage = State.QUEUED, Usage(len(request.prompt_ids))
        else:
            state, usage = group.state, group.usage
        return RequestView(request.key, request.request_id, state.value, job.submitted, usage)

    def counts(self) -> Counts:
        """Count requests, tokens and times."""
        states = [group.state for group in list(self._groups.values())]
        num_queued = states.count(State.QUEUED)
        counted = self._stats.counts(len(states) - num_queued, num_queued)
        if (ready := self._loaded) is None:
            return counted
        return replace(
            counted,
            used_cache_tokens=ready.cache.num_tokens,
            total_cache_tokens=ready.kv_tokens,
            cache_bytes=ready.cache.nbytes,
            prefix_bytes=ready.prefixes.nbytes,
            adapters_bytes=0 if ready.model.adapters is None else ready.model.adapters.nbytes,
            evictions_total=ready.prefixes.evictions_total,
            **expert_counts(ready.model.experts),
        )

    def recover(self) -> None:
        """Give memory back that a failed tick left in MLX's pool."""
        self._ready.batch.drop()
        mx.clear_cache()

    def close(self) -> None:
        """Free the model, its cache and MLX's pool."""
        if self._loaded is not None:
            self._loaded.prefixes.close()
            self._loaded.model.close()
        self._groups.clear()
        self._loaded = None
        mx.clear_cache()

    @property
    def _ready(self) -> LoadedText:
        if self._loaded is None:
            raise NotLoadedError("the model is not loaded")
        return self._loaded

    def _most_tokens(self, burst_s: float | None) -> tuple[int | None, int | None]:
        """Return how many tokens of prompts the next tick may have beside rows that decode, and without any."""
        if self._ready.model.path is NumericPath.REFERENCE:
            return None, None  # its cuts are mlx-lm's
        if burst_s is None:
            return self._pace.tokens, None
        return min(self._pace.tokens, self._pace.tokens_within(burst_s / 2)), self._pace.tokens_within(burst_s)

    def _of(self, sequence: Sequence) -> SequenceGroup:
        return self._groups[sequence.key]

    def _start(self, sequence: Sequence) -> bool:
        """Make room for a sequence that has got a slot, and let it begin behind what is known of its prompt."""
        if sequence is self._too_large:
            return False
        ready, group = self._ready, self._of(sequence)
        row = group.row(sequence)
        parts = group.shared or ready.prefixes.find(row)
        if parts is None:
            self._is_reading = True
            return False
        num_known = self._take_room(row, parts)
        if num_known is None:
            if self._scheduler.num_running == 0 and self._let_go():
                # Nobody runs who could give room back, so what only waiting sequences shared had to go.
                return self._start(sequence)
            self._too_large = sequence
            return False
        self._places.remove(sequence.key)
        sequence.prefilled = num_known
        group.note_start(sequence, self._clock())
        if sequence.leader is None:
            self._stats.note_start(group.clock, sequence.prefilled)
        return True

    def _take_room(self, row: Row, parts: Items[Part]) -> int | None:
        """Let a row begin behind blocks, with room to its end; return their tokens, or None where there is none."""
        ready = self._ready
        has_room = False
        try:
            # First, because what it shares needs no room: its leader's blocks may be most of what there is.
            num_known = ready.prefixes.adopt(row, parts)
            has_room = ready.cache.reserve(row.slot, row.sequence.max_tokens)
        finally:
            if not has_room:
                ready.cache.release(row.slot)
        return num_known if has_room else None

    def _let_go(self) -> bool:
        """Give back what is kept for sequences that have not started; return whether there was any."""
        kept = [group for group in self._groups.values() if group.shared]
        for group in kept:
            group.drop_shared()
        return bool(kept)

    def _release(self, row: Row) -> None:
        sequence, slot = row.sequence, row.sequence.slot
        self._ready.prefixes.forget(row)
        self._scheduler.remove(sequence)
        self._stats.note_end(sequence)
        self._too_large = None
        if slot is not None:
            self._ready.cache.release(slot)

    def _decode(self, rows: list[Row], reporter: Reporter[TextRequest]) -> None:
        batch, began = self._ready.batch, self._clock()
        num_before = self._stats.completion_tokens_total
        is_ahead = self._ready.starts_at_once and not any(row.is_drafting or row.is_forced for row in rows)
        if is_ahead:
            batch.build([row for row in rows if not row.sequence.is_last_token_pending()], is_ahead=True)
            batch.start()
        read = [row for row in rows if self._read(row, reporter)]
        # A row that was read before another of its request failed is gone.
        left = [row for row in read if row.sequence.slot is not None]
        reporter.flush()
        if left:
            self._go_on(left, reporter, is_built=is_ahead)
        batch.drop()
        # What was guessed right or is forced comes several in a step.
        self._stats.decode.add(self._stats.completion_tokens_total - num_before, self._clock() - began)

    def _go_on(self, rows: list[Row], reporter: Reporter[TextRequest], *, is_built: bool) -> None:
        """Start the step of rows whose tokens were read, and the draw of the next ones."""
        batch = self._ready.batch
        inquiry = Inquiry(rows, reporter)
        for row in rows:
            self._ready.prefixes.publish(row)
        if not is_built:
            batch.build(rows, is_ahead=False)
            if inquiry.is_open:
                batch.start()
        batch.draw(self._restricted(rows, inquiry, reporter))

    def _restricted(self, rows: list[Row], inquiry: Inquiry, reporter: Reporter[TextRequest]) -> list[Row]:
        """Wait for what constraints say, and return the rows that go on: a constraint may find that it cannot."""
        for row, error in inquiry.settle():
            self._fail(row.sequence.key, error, reporter)
        return [row for row in rows if row.sequence.slot is not None and self._may_follow(row, reporter)]

    def _may_follow(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        """Tell whether anything may follow in a row; a grammar of nothing ends it before its first token."""
        constraint = row.sequence.constraint
        if constraint is None or row.is_forced or not constraint.is_complete:
            return True
        return self._tell(self._of(row.sequence), row, row.sequence.force(()), reporter)

    def _read(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        """Read a row's tokens and tell its reader; return whether the row goes on."""
        sequence = row.sequence
        group = self._groups.get(sequence.key)
        if group is None:
            return False  # another of its sequences has failed in this tick
        reporter.tick()
        try:
            advances = row.advance()
        except LogitsNotFiniteError as error:
            self._fail(sequence.key, AdapterIncompatible.by_overflow(sequence.request.adapter_names) or error, reporter)
            return False
        except (TokenNotAllowedError, WorkerError) as error:
            self._fail(sequence.key, error, reporter)
            return False
        self._stats.note_tokens(group.clock, row, row.num_read, self._clock())
        return all(self._tell(group, row, advance, reporter) for advance in advances)

    def _fail(self, key: str, error: Exception, reporter: Reporter[TextRequest]) -> None:
        """End a request with an error, unless another of its sequences has done so."""
        if (group := self._groups.get(key)) is not None:
            answer = error if isinstance(error, WorkerError) else incident_of(error, "request failed")
            reporter.post(group.job, Failed(answer, self.drop(key)))

    def _fail_begun(self, error: WorkerError, reporter: Reporter[TextRequest]) -> None:
        """End all requests of which something is computed that nobody has vouched for yet."""
        for key in [key for key, group in self._groups.items() if group.has_started]:
            self._fail(key, error, reporter)

    def _tell(self, group: SequenceGroup, row: Row, advance: Advance, reporter: Reporter[TextRequest]) -> bool:
        """Tell the reader what tokens did; return whether the sequence goes on."""
        for event in advance.events:
            reporter.post(group.job, event)
        if advance.finished is None:
            return True
        self._ready.prefixes.publish(row)
        self._release(row)
        reporter.post(group.job, advance.finished)
        if group.is_complete:
            usage = self.drop(row.sequence.key)
            reporter.post(group.job, Completed(usage, group.clock.timing(self._clock())))
        return False

    def _prefill(self, chunks: list[Chunk], reporter: Reporter[TextRequest]) -> None:
        rows = [self._of(chunk.sequence).row(chunk.sequence) for chunk in chunks]
        for row in rows:
            self._tell_start(row, reporter)
        reporter.flush()
        began = self._clock()
        inquiry = Inquiry([row for row, chunk in zip(rows, chunks, strict=True) if chunk.row.logits_at], reporter)
        complete = self._ready.batch.prefill(rows, [chunk.row for chunk in chunks])
        for row in rows:
            self._after_chunk(row, reporter)
        going = self._restricted(complete, inquiry, reporter)
        self._ready.batch.draw(going)
        for row in going:
            row.sequence.move(State.DECODING)
        num_tokens, seconds = sum(chunk.row.num_tokens for chunk in chunks), self._clock() - began
        self._stats.note_prefill(num_tokens, seconds)
        self._pace.note(num_tokens, seconds)
        reporter.tick()

    def _tell_start(self, row: Row, reporter: Reporter[TextRequest]) -> None:
        group, request = self._of(row.sequence), row.sequence.request
        if not group.has_started:
            group.has_started = True
            reporter.post(group.job, Started(len(request.prompt_ids), request.sampling.seed))

    def _after_chunk(self, row: Row, reporter: Reporter[TextRequest]) -> None:
        group, sequence = self._of(row.sequence), row.sequence
        self._ready.prefixes.hold(row)
        if sequence.leader is not None:
            return
        if sequence.is_prefilled:
            group.share(self._ready.cache, row.slot)
        if sequence.request.prefill_progress:
            progress = PrefillProgress(sequence.prefilled, len(sequence.request.prompt_ids))
            reporter.post(group.job, progress)
