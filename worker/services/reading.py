"""One generation between its arrival and its end, as its service holds it."""

import secrets
from dataclasses import replace
from types import TracebackType
from typing import Self

from worker.adapters.lease import NO_ADAPTERS
from worker.events import Channel, Event, Started, TextDelta, Usage
from worker.outbox import Outbox
from worker.scheduler import TextPlan
from worker.sequence import CacheUse, StoppingSettings, TextRequest
from worker.served import ServedModel
from worker.services.desk import Desk
from worker.services.edge import Call
from worker.services.handed import Handed
from worker.validation import Generation, check_context, check_min_tokens

# Short enough to type, and a number that every language reads exactly.
SEED_BITS = 32

TextDesk = Desk[TextRequest, TextPlan]


class Reading(Handed[TextRequest, TextPlan]):
    """Hands a checked generation to the engine and takes its events; leaving early ends it there at once.

    Args:
        desk: where to hand it in.
        served: the model.
        generation: what is asked for.
        call: whose it is; its `usage` follows the events.
        method: name of the RPC.

    Attributes:
        resolved: what answers, exactly, once it is entered.
    """

    def __init__(self, desk: TextDesk, served: ServedModel, generation: Generation, call: Call, method: str) -> None:
        streaming = generation.streaming
        outbox = Outbox(desk.outbox_bytes, streaming.coalesce_tokens, streaming.coalesce_interval_s)
        super().__init__(desk, call, generation.envelope.request_id, method, outbox)
        self._served = served
        self._generation = generation
        self._lease = NO_ADAPTERS
        self.resolved = served.resolved

    async def __aenter__(self) -> Self:
        """Tokenize the prompt and submit the request.

        Raises:
            WorkerError: the request is refused; what it is says why.
        """
        self._call.check_envelope(self._generation.envelope, self._served.resolved.model)
        await super().__aenter__()
        try:
            self._lease = await self._served.lease(self._generation.adapters, self._call.time_remaining())
            self.resolved = self._served.resolve(self._lease)
            self._submit(await self._prepare())
        except BaseException:
            self._desk.requests.remove(self._open)
            self._lease.end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request in the engine unless it has ended; then its adapters may go."""
        await super().__aexit__(kind, error, trace)
        self._lease.end()

    async def take(self) -> Event:
        """Return the next event; the last is `Completed`.

        Raises:
            Exception: the request failed with it.
        """
        event = await super().take()
        if isinstance(event, Started):
            self._call.usage = Usage(event.prompt_tokens)
        elif isinstance(event, TextDelta):
            self._count(event)
        return event

    async def _prepare(self) -> TextRequest:
        generation, facts = self._generation, self._served.facts
        deadline = self._deadline()
        tokenized = await self._served.prompter.tokenize(generation.prompt, self._call.time_remaining())
        ids = tokenized.ids
        check_context(len(ids), facts, generation.prompt.path)
        check_min_tokens(len(ids), generation.stopping, facts)
        lead = await self._served.steerer.lead(generation, tokenized, self._call.time_remaining())
        seed = secrets.randbits(SEED_BITS) if generation.seed is None else generation.seed
        return TextRequest(
            request_id=self._open.request_id,
            prompt_ids=ids,
            sampling=replace(generation.sampling, seed=seed),
            stopping=self._stopping(),
            priority=generation.envelope.priority,
            deadline=deadline,
            prefill_progress=generation.streaming.prefill_progress,
            waiting_events=generation.streaming.waiting_events,
            token_details=generation.token_details,
            top_logprobs=generation.top_logprobs,
            num_sequences=generation.num_sequences,
            cache=self._cache_use(),
            max_draft_tokens=generation.shortcuts.max_draft_tokens,
            form=lead.form,
            make_constraint=lead.make_constraint,
            adapters=self._lease.uses,
            adapter_names=self._lease.names,
        )

    def _stopping(self) -> StoppingSettings:
        asked, served = self._generation.stopping, self._served
        return StoppingSettings(
            max_tokens=served.facts.max_context_tokens if asked.max_tokens is None else asked.max_tokens,
            min_tokens=asked.min_tokens,
            stop_strings=asked.stop_strings,
            stop_token_ids=asked.stop_token_ids,
            eos_token_ids=frozenset() if asked.ignore_eos else served.eos_token_ids,
            include_stop_in_output=asked.include_stop_in_output,
        )

    def _cache_use(self) -> CacheUse:
        asked = self._generation.shortcuts
        namespace = self._lease.namespace + cache_namespace(self._call.group, asked.cache_salt)
        return CacheUse(asked.bypass_prefix_cache, namespace)

    def _count(self, delta: TextDelta) -> None:
        before = self._call.usage or Usage()
        num_reasoning = delta.token_count if delta.channel is Channel.REASONING else 0
        self._call.usage = replace(
            before,
            completion_tokens=before.completion_tokens + delta.token_count,
            reasoning_tokens=before.reasoning_tokens + num_reasoning,
        )


def cache_namespace(group: str, salt: str) -> str:
    """Return what two requests have to agree in to share cached prompts: equal only for an equal group and salt."""
    return f"{len(group)}:{group}{salt}"
