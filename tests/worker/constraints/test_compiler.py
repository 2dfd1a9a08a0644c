"""Compiles constraints beside the event loop, whatever they do, and remembers what was found."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.worker.constraints.drawing import allowed_ids
from tests.worker.constraints.hostile import Hostile, all_hostile
from tests.worker.constraints.vocabularies import tokens_of
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.grammar import Grammar, Kind
from worker.constraints.limits import TRIAL_CPU_S
from worker.constraints.refusal import Refused
from worker.constraints.source import Source
from worker.constraints.trials import MAX_WAITING, TrialChildError, Trials
from worker.errors import (
    ConstraintBusy,
    ConstraintInvalid,
    ConstraintTooComplex,
    DeadlineExceeded,
    FieldError,
    QueueFull,
)

PATH = "spec.constraint.of_a_test"
# A grammar is judged after so much computing; the rest is for a machine that does other things too.
LIMIT_S = TRIAL_CPU_S + 2.0
MAX_HELD_S = 0.25
# Takes longer than a trial may.
LONG = "start: A\nA: " + " & ".join(f"/(?s:.*)[a-m]{{{index}}}(?s:.*)/" for index in range(1, 300))


def grammar(kind: Kind, text: str) -> Grammar:
    return Grammar(kind, text, PATH)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[GrammarCompiler]:
    """One compiler for many tests, with its child."""
    compiler = GrammarCompiler(tokens_of("smollm2"))
    yield compiler
    await compiler.close()


class Counted(Trials):
    """Counts what is tried."""

    def __init__(self) -> None:
        super().__init__({})
        self.num_tried = 0

    async def try_out(self, kind: Kind, text: str) -> Source:
        self.num_tried += 1
        return await super().try_out(kind, text)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("hostile", all_hostile(), ids=lambda hostile: f"{hostile.kind}: {hostile.name}")
async def test_a_hostile_constraint_has_its_reason_in_time(shared: GrammarCompiler, hostile: Hostile) -> None:
    await shared.compile(grammar("json_object", ""), 30)
    began = time.perf_counter()
    held = asyncio.create_task(longest_hold())

    error: FieldError | None = None
    try:
        (await shared.compile(grammar(hostile.kind, hostile.text), 30)).start().mask()
    except FieldError as caught:
        error = caught

    took_s = time.perf_counter() - began
    held.cancel()
    held_s = await held
    assert (type(error) if error else None) is hostile.error, f"{error} after {took_s:.2f} s"
    assert getattr(error, "field", PATH) == PATH
    assert took_s < LIMIT_S
    assert held_s < MAX_HELD_S
    print(f"{hostile.kind}: {hostile.name}: {took_s * 1e3:.0f} ms, held {held_s * 1e3:.0f} ms: {error}")


async def longest_hold() -> float:
    """Return for how long at most the event loop was held, once cancelled."""
    longest_s = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began)
            await asyncio.sleep(0.002)
    except asyncio.CancelledError:
        return longest_s


@pytest.mark.asyncio(loop_scope="module")
async def test_a_compiled_grammar_is_ready_for_its_sequences_and_more(shared: GrammarCompiler) -> None:
    compiled = await shared.compile(grammar("choices", '["red", "green"]'), 10, num_sequences=2)

    masks = [allowed_ids(compiled.start().mask()) for _ in range(4)]

    assert masks[0] != []
    assert all(mask == masks[0] for mask in masks)


async def test_what_was_tried_is_not_tried_again() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials)
    try:
        for _ in range(2):
            await compiler.compile(grammar("regex", "a+"), 20)
            with pytest.raises(ConstraintInvalid):
                await compiler.compile(grammar("regex", "(("), 20)
    finally:
        await compiler.close()

    assert trials.num_tried == 2


async def test_the_same_text_of_another_kind_is_another_grammar() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials)
    try:
        await compiler.compile(grammar("regex", "true"), 20)
        await compiler.compile(grammar("json_schema", "true"), 20)
    finally:
        await compiler.close()

    assert trials.num_tried == 2


async def test_callers_of_the_same_grammar_at_once_share_one_trial() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials)
    try:
        await asyncio.gather(*(compiler.compile(grammar("regex", "a+"), 20) for _ in range(5)))
    finally:
        await compiler.close()

    assert trials.num_tried == 1


async def test_a_refusal_names_the_field_of_each_caller() -> None:
    compiler = GrammarCompiler(tokens_of("byte_level"))
    try:
        for path in ("spec.constraint.regex", "spec.chat.tools[0]"):
            with pytest.raises(ConstraintInvalid) as caught:
                await compiler.compile(Grammar("regex", "((", path), 20)
            assert caught.value.field == path
    finally:
        await compiler.close()


async def test_the_least_recently_used_is_forgotten() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials, max_cached=2)
    try:
        for text in ("a", "b", "a", "c", "a", "b"):
            await compiler.compile(grammar("regex", text), 20)
    finally:
        await compiler.close()

    assert trials.num_tried == 4


async def test_what_is_remembered_is_bounded_in_bytes() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials, max_cached_bytes=3000)
    try:
        for text in ("a" * 2000, "b" * 2000, "a" * 2000):
            await compiler.compile(grammar("regex", text), 20)
    finally:
        await compiler.close()

    assert trials.num_tried == 3


async def test_a_deadline_ends_the_wait_and_not_the_trial() -> None:
    trials = Counted()
    compiler = GrammarCompiler(tokens_of("byte_level"), trials)
    try:
        with pytest.raises(DeadlineExceeded):
            await compiler.compile(grammar("regex", "a+"), 0.0001)
        await compiler.compile(grammar("regex", "a+"), 20)
    finally:
        await compiler.close()

    assert trials.num_tried == 1


async def test_a_child_that_is_killed_is_replaced() -> None:
    trials = Trials({})
    try:
        await trials.try_out("regex", "a")
        first = trials.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert (await trials.try_out("regex", "b")).text
        assert trials.pid != first
    finally:
        await trials.close()


async def test_a_child_that_a_grammar_ends_is_replaced() -> None:
    trials = Trials({})
    chain = next(hostile for hostile in all_hostile() if hostile.name == "a chain of rules")
    compiler = GrammarCompiler(tokens_of("byte_level"), trials)
    try:
        await compiler.compile(grammar("regex", "a"), 20)
        first = trials.pid
        with pytest.raises(ConstraintTooComplex, match="too deep"):
            await compiler.compile(grammar(chain.kind, chain.text), 20)
        await compiler.compile(grammar("regex", "b"), 20)
        assert trials.pid != first
    finally:
        await compiler.close()


@pytest.mark.parametrize(
    ("ended_by", "problem"),
    [(signal.SIGABRT, "memory"), (signal.SIGSEGV, "too deep"), (signal.SIGBUS, "too deep"), (signal.SIGPROF, "longer")],
)
async def test_how_a_child_ended_tells_what_the_grammar_took(ended_by: signal.Signals, problem: str) -> None:
    trials = Trials({})
    try:
        await trials.try_out("regex", "a")
        trial = asyncio.create_task(trials.try_out("lark", LONG))
        await asyncio.sleep(0)
        assert trials.pid is not None
        os.kill(trials.pid, ended_by)
        with pytest.raises(Refused, match=problem):
            await trial
    finally:
        await trials.close()


async def test_closing_ends_the_child() -> None:
    trials = Trials({})
    await trials.try_out("regex", "a")
    pid = trials.pid

    await trials.close()

    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_closing_ends_those_who_wait() -> None:
    compiler = GrammarCompiler(tokens_of("byte_level"))
    waiting = asyncio.create_task(compiler.compile(grammar("regex", "a"), 20))
    await asyncio.sleep(0)

    await compiler.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_no_more_than_so_many_wait() -> None:
    trials = Trials({})
    waiting = [asyncio.create_task(trials.try_out("regex", f"a{index}")) for index in range(MAX_WAITING)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(QueueFull):
            await trials.try_out("regex", "b")
        assert len(await asyncio.gather(*waiting)) == MAX_WAITING
    finally:
        await trials.close()


async def test_a_child_that_does_not_start_is_no_fault_of_the_grammar() -> None:
    def none_is_left(module: str) -> None:
        raise OSError(module)

    trials = Trials({}, none_is_left)  # type: ignore[arg-type]

    with pytest.raises(TrialChildError):
        await trials.try_out("regex", "a")


async def test_masks_of_a_compiled_grammar_are_those_of_its_text() -> None:
    tokens = tokens_of("byte_level")
    compiler = GrammarCompiler(tokens)
    try:
        compiled = await compiler.compile(grammar("lark", 'start: "a" <|turn|> %json {"type": "null"}'), 20)
    finally:
        await compiler.close()
    constraint = compiled.start()

    skipped = constraint.skip()

    assert tokens.special_ids["<|turn|>"] in skipped
    assert constraint.is_complete
    assert json.dumps(None).encode() in b"".join(tokens.vocabulary.decode_bytes([each]) for each in skipped)


async def test_a_child_that_gets_no_time_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials({})
    try:
        await trials.try_out("regex", "a")
        monkeypatch.setattr("worker.constraints.trials.WALL_FACTOR", 0.1)
        assert trials.pid is not None
        os.kill(trials.pid, signal.SIGSTOP)
        with pytest.raises(ConstraintBusy):
            await trials.try_out("regex", "b")
        monkeypatch.undo()
        assert (await trials.try_out("regex", "b")).text
    finally:
        await trials.close()
