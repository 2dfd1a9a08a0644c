"""Compiles constraints beside the event loop: tried in a child first, and known again by their content."""

import asyncio
import hashlib
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from worker.constraints.budget import Budget
from worker.constraints.constraint import GrammarConstraint
from worker.constraints.grammar import Grammar
from worker.constraints.matching import Matcher, make_matcher
from worker.constraints.refusal import Refused
from worker.constraints.source import Source
from worker.constraints.tokens import ConstrainedTokens
from worker.constraints.trials import Trials
from worker.errors import DeadlineExceeded

MAX_COMPILING = 2
MAX_CACHED = 256
MAX_CACHED_BYTES = 32 << 20

Verdict = Source | Refused


class CompiledGrammar:
    """A grammar that compiles for this model, ready for a number of sequences.

    Args:
        make_constraint: makes one for a sequence; it may compile when it is first used.
        ready: those that are compiled already.
    """

    def __init__(self, make_constraint: Callable[[], GrammarConstraint], ready: list[GrammarConstraint]) -> None:
        self._make_constraint = make_constraint
        self._ready = deque(ready)

    def start(self) -> GrammarConstraint:
        """Return a constraint at the beginning of the grammar, for one sequence."""
        try:
            return self._ready.popleft()
        except IndexError:
            return self._make_constraint()


class GrammarCompiler:
    """Compiles constraints for one model.

    Whether a grammar can be taken is found once for each content and remembered, refusals too. Each sequence then has
    the grammar compiled for itself, on a thread of this compiler.

    Args:
        tokens: of the model.
        trials: where grammars are tried; None: in a child of its own.
        max_cached: verdicts that are remembered.
        max_cached_bytes: of them together.
        budget: of what is ready; None: the usual one.
    """

    def __init__(
        self,
        tokens: ConstrainedTokens,
        trials: Trials | None = None,
        *,
        max_cached: int = MAX_CACHED,
        max_cached_bytes: int = MAX_CACHED_BYTES,
        budget: Budget | None = None,
    ) -> None:
        self._tokens = tokens
        self._trials = Trials(tokens.special_ids) if trials is None else trials
        self._verdicts = _Verdicts(max_cached, max_cached_bytes)
        self._running: dict[bytes, asyncio.Task[Verdict]] = {}
        self._budget = budget or Budget()
        self._executor = ThreadPoolExecutor(MAX_COMPILING, thread_name_prefix="grammar")

    async def compile(self, grammar: Grammar, timeout_s: float | None, num_sequences: int = 1) -> CompiledGrammar:
        """Compile a constraint, or find why it cannot be taken.

        Args:
            grammar: what to compile.
            timeout_s: what is left of the caller's deadline; None: no deadline.
            num_sequences: that it is to be ready for at once; more may start, and compile when first used.

        Raises:
            ConstraintInvalid: it is wrong, or no text fits it, or none that this model can write.
            ConstraintTooComplex: it is over its limits of size, depth, time, memory or combinations.
            UnsupportedOption: it says what is not enforced.
            DeadlineExceeded: it took too long for the caller.
            QueueFull: too many wait.
            ConstraintBusy: the child got too little of the machine's time, or others leave no memory for it.
            TrialChildError: there is no child that tries grammars.
        """
        try:
            async with asyncio.timeout(timeout_s):
                verdict = await self._verdict(grammar)
                if isinstance(verdict, Refused):
                    raise verdict.at(grammar.path)
                return await self._make_ready(grammar, verdict, num_sequences)
        except TimeoutError:
            raise DeadlineExceeded from None

    async def close(self) -> None:
        """Take no more, and end the child."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)
        await self._trials.close()

    async def _make_ready(self, grammar: Grammar, source: Source, num_sequences: int) -> CompiledGrammar:
        """Compile on a thread of the executor, within the budget; it is given back once nobody holds the result."""
        cost_s = source.cost_s * num_sequences
        self._budget.take(cost_s)
        try:
            loop = asyncio.get_running_loop()
            compiled = await loop.run_in_executor(self._executor, self._ready, grammar, source, num_sequences)
        except BaseException:
            self._budget.give_back(cost_s)
            raise
        weakref.finalize(compiled, self._budget.give_back, cost_s).atexit = False
        return compiled

    async def _verdict(self, grammar: Grammar) -> Verdict:
        """Return what a trial found, now or before; callers that ask for the same at once share one trial."""
        key = hashlib.blake2b(f"{grammar.kind}:{grammar.text}".encode("utf-8", "surrogatepass")).digest()
        if (known := self._verdicts.get(key)) is not None:
            return known
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._try_out(key, grammar), name="grammar")
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # A caller that goes away leaves the trial to those who come after.
        return await asyncio.shield(task)

    async def _try_out(self, key: bytes, grammar: Grammar) -> Verdict:
        try:
            verdict: Verdict = await self._trials.try_out(grammar.kind, grammar.text)
        except Refused as refused:
            verdict = refused.with_traceback(None)
        self._verdicts.add(key, verdict)
        return verdict

    def _forget(self, key: bytes, done: asyncio.Task[Verdict]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # whoever waited has it; where nobody did, it is no one's

    def _ready(self, grammar: Grammar, source: Source, num_sequences: int) -> CompiledGrammar:
        """Compile for so many sequences, on a thread of the executor."""
        special_ids = self._tokens.special_ids
        named = frozenset(special_ids[text] for text in source.special_tokens if text in special_ids)

        def matcher() -> Matcher:
            return make_matcher(self._tokens.vocabulary, source.text, grammar.kind)

        def constraint() -> GrammarConstraint:
            return GrammarConstraint(matcher, grammar, self._tokens, named)

        ready = [constraint() for _ in range(num_sequences)]
        for each in ready:
            each.mask()  # compiles, and finds out whether the model has a token to begin with
        return CompiledGrammar(constraint, ready)


class _Verdicts:
    """What trials found, the least recently used forgotten first."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._found: OrderedDict[bytes, Verdict] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: bytes) -> Verdict | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def add(self, key: bytes, verdict: Verdict) -> None:
        self._found[key] = verdict
        self._num_bytes += _size(verdict)
        while self._found and (len(self._found) > self._max_count or self._num_bytes > self._max_bytes):
            _, forgotten = self._found.popitem(last=False)
            self._num_bytes -= _size(forgotten)


def _size(verdict: Verdict) -> int:
    return len(verdict.text if isinstance(verdict, Source) else verdict.problem)
