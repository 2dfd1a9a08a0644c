"""An engine with SmolLM2 that answers constrained questions, many at once or each alone."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from pomona.v1 import generation_pb2 as pb

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath
from tests.support.sixteen import Case
from tests.support.smollm2 import smollm2_path
from worker.constraints.compiler import CompiledGrammar, GrammarCompiler
from worker.constraints.grammar import read_constraint
from worker.constraints.tokens import constrained_tokens
from worker.engine import Engine
from worker.events import Completed, Event, Failed, FinishReason, SequenceFinished, TextDelta, Usage
from worker.outbox import Outbox
from worker.scheduler import TextPlan
from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

COMPILE_TIMEOUT_S = 60.0
OUTBOX_BYTES = 1 << 20
# Of JSON, and what draws an answer that may be of any length to its end.
CLOSING = ('"', "}", '"}', "]", '"]', "}}")
CLOSING_BIAS = 4.0
PROMPT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Answer:
    """What one request came to, and when each of its deltas came, in seconds of a monotonic clock."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    arrivals: list[float] = field(default_factory=list[float])


class ConstrainedEngine:
    """Answers with one model.

    Args:
        loaded: the model.
        engine: that runs it.
        compiler: of its constraints.
    """

    def __init__(self, loaded: LoadedModel, engine: Engine[TextRequest, TextPlan], compiler: GrammarCompiler) -> None:
        self._loaded = loaded
        self._engine = engine
        self._compiler = compiler
        self._num_asked = 0
        encode = loaded.tokenizer.encode
        self._closing = {encode(text, add_special_tokens=False)[0]: CLOSING_BIAS for text in CLOSING}

    async def compile(self, constraint: pb.Constraint) -> CompiledGrammar:
        """Compile what a request brings."""
        grammar = read_constraint(constraint, "spec.constraint")
        assert grammar is not None
        return await self._compiler.compile(grammar, COMPILE_TIMEOUT_S)

    def asking(
        self, case: Case, seed: int, compiled: CompiledGrammar | None, *, max_tokens: int, may_end: bool = True
    ) -> TextRequest:
        """Return a request at temperature 1.

        Args:
            case: what is asked.
            seed: of the draws.
            compiled: what its answer must fit; None: anything.
            max_tokens: of the answer.
            may_end: whether the model may end it.
        """
        self._num_asked += 1
        ids = self._loaded.tokenizer.encode(PROMPT.format(question=case.question), add_special_tokens=False)
        ends = self._loaded.checkpoint.eos_token_ids if may_end else frozenset[int]()
        return TextRequest(
            f"r{self._num_asked}",
            tuple(ids),
            SamplingSettings(temperature=1.0, seed=seed, logit_bias=self._closing if case.is_open_ended else {}),
            StoppingSettings(max_tokens, eos_token_ids=ends),
            token_details=True,
            make_constraint=None if compiled is None else compiled.start,
        )

    async def answers(self, requests: Sequence[TextRequest]) -> list[Answer]:
        """Answer all of them at once."""
        outboxes = [Outbox(OUTBOX_BYTES) for _ in requests]
        for wanted, outbox in zip(requests, outboxes, strict=True):
            self._engine.submit(wanted, outbox)
        return list(await asyncio.gather(*map(_read, outboxes)))


@contextlib.asynccontextmanager
async def constrained_engine(max_rows: int) -> AsyncGenerator[ConstrainedEngine]:
    """Load SmolLM2 and serve so many requests side by side."""
    load_model: Callable[..., LoadedModel] = lambda report: load(  # noqa: E731
        open_checkpoint(smollm2_path()), NumericPath.FAST, report
    )
    workload = TextWorkload(load_model, TextSettings(max_batch_rows=max_rows, max_context_tokens=1024))
    engine: Engine[TextRequest, TextPlan] = Engine(workload, asyncio.get_running_loop())
    engine.start()
    loaded = await engine.load()
    assert isinstance(loaded, LoadedModel)
    vocab_size = int(loaded.checkpoint.config["vocab_size"])
    compiler = GrammarCompiler(constrained_tokens(loaded.tokenizer, vocab_size, loaded.checkpoint.eos_token_ids))
    try:
        yield ConstrainedEngine(loaded, engine, compiler)
    finally:
        await compiler.close()
        await engine.stop(0)


async def _read(outbox: Outbox) -> Answer:
    answer = Answer()
    event: Event | None = None
    while not isinstance(event, Completed):
        event = await outbox.take()
        match event:
            case TextDelta():
                answer.text += event.text
                answer.token_ids += [token.id for token in event.tokens]
                answer.arrivals.append(time.perf_counter())
            case SequenceFinished():
                answer.reason = event.reason
            case Completed():
                answer.usage = event.usage
            case Failed():
                raise event.error
            case _:
                pass
    return answer
