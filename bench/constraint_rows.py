"""Rows with constraints in a running engine: what they cost end to end, and that all of them come out right."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pomona.v1 import generation_pb2 as pb

from bench import report
from tests.support.constrained_engine import Answer, ConstrainedEngine, constrained_engine
from tests.support.sixteen import PERSON, REVIEW, SHAPE, Case, sixteen
from worker.constraints.compiler import CompiledGrammar

ROWS = 16
MAX_TOKENS = 800
SEED = 1000

ITEMS: tuple[dict[str, Any], ...] = (
    PERSON,
    REVIEW,
    SHAPE,
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
    {"type": "number", "minimum": 0, "maximum": 1000},
    {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
)
REGEXES = (
    r"([a-z]{1,9} ){2000}",
    r"([A-Z][a-z]+, ){2000}",
    r"(?s:.){6000,}",
    r"([0-9]{1,4}; ){2000}",
    r"(a|b|c|d|\n){6000}",
    rf"({'|'.join(f'the ace of {index}' for index in range(50))}; ){{2000}}",
    rf"({'|'.join(f'the king of {index}' for index in range(500))}; ){{2000}}",
)
LARKS = ('start: line{2000}\nline: /[A-Z][a-z ]{5,60}/ "\\n"', 'start: (NUMBER "+"){2000}\nNUMBER: /[0-9]{1,5}/')

Compiled = Sequence[CompiledGrammar | None]


async def measure_engine(rounds: int, num_tokens: int) -> dict[str, Any]:
    """Return tokens a second of sixteen rows, with constraints and without, and milliseconds between two tokens of one.

    Args:
        rounds: of each, in turns.
        num_tokens: that each row draws; no constraint is fulfilled before.
    """
    print(f"\n{ROWS} rows of {num_tokens} tokens in the engine, with {ROWS} different constraints and with none")
    rates: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    forced: list[float] = []
    async with constrained_engine(ROWS) as engine:
        cases = endless()
        compiled = [await engine.compile(case.constraint) for case in cases]
        ways: dict[str, Compiled] = {"none": [None] * ROWS, "constrained": compiled}
        for number in range(rounds + 1):
            for name, grammars in ways.items():
                answers, took_s = await _timed(engine, cases, grammars, num_tokens, SEED + number)
                if number == 0:
                    continue  # compiles what is left, and warms up
                rates.setdefault(name, []).append(sum(len(each.token_ids) for each in answers) / took_s)
                gaps.setdefault(name, []).extend(_gaps_ms(answers))
                if grammars is compiled:
                    forced.append(sum(each.usage.forced_tokens for each in answers))
    results: dict[str, Any] = {"forced_tokens": report.summary(forced)}
    for name, samples in rates.items():
        results[name] = {"tokens_per_second": report.summary(samples), "gap_ms": report.quantiles(gaps[name])}
        told = f"{report.spread(results[name]['tokens_per_second'], 'tokens/s')}, between two tokens of a row"
        print(f"{name:12s} {told} {report.tail(results[name]['gap_ms'], 'ms')}", flush=True)
    print(f"forced of {ROWS * num_tokens} tokens: {report.spread(results['forced_tokens'], '')}")
    return results


async def check_runs(num_runs: int) -> None:
    """Answer sixteen questions under sixteen constraints at once, so many times.

    Raises:
        SystemExit: one does not fit, or differs from the answer to the same question alone.
    """
    wrong: list[str] = []
    batch_s, num_tokens = 0.0, 0
    async with constrained_engine(ROWS) as engine:
        cases = sixteen()
        compiled = [await engine.compile(case.constraint) for case in cases]
        for run in range(num_runs):
            answers, took_s = await _timed(engine, cases, compiled, MAX_TOKENS, run * ROWS, may_end=True)
            batch_s += took_s
            num_tokens += sum(len(each.token_ids) for each in answers)
            for index, (case, grammar, answer) in enumerate(zip(cases, compiled, answers, strict=True)):
                alone = engine.asking(case, run * ROWS + index, grammar, max_tokens=MAX_TOKENS)
                (solo,) = await engine.answers([alone])
                wrong += _problems(case, run * ROWS + index, answer, solo)
            if (run + 1) % 10 == 0:
                print(f"{run + 1} runs of {ROWS} rows: {len(wrong)} wrong", flush=True)
    print(f"{num_runs} runs, {num_tokens} tokens, {num_tokens / batch_s:.0f} tokens/s at once, {len(wrong)} wrong")
    if wrong:
        raise SystemExit("\n".join(wrong))


def endless() -> list[Case]:
    """Return sixteen constraints that no answer of some hundred tokens fulfils, each different."""
    constraints = [pb.Constraint(json_schema=json.dumps(_many(item))) for item in ITEMS]
    constraints += [pb.Constraint(regex=each) for each in REGEXES]
    constraints += [pb.Constraint(lark_grammar=each) for each in LARKS]
    return [Case(f"endless {index}", "Tell me more.", each, bool) for index, each in enumerate(constraints)]


def _many(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1000}


async def _timed(
    engine: ConstrainedEngine,
    cases: Sequence[Case],
    compiled: Compiled,
    max_tokens: int,
    seed: int,
    *,
    may_end: bool = False,
) -> tuple[list[Answer], float]:
    requests = [
        engine.asking(case, seed + index, grammar, max_tokens=max_tokens, may_end=may_end)
        for index, (case, grammar) in enumerate(zip(cases, compiled, strict=True))
    ]
    # Compiling for one sequence more is not what is measured.
    started = [request.make_constraint() if request.make_constraint else None for request in requests]
    for each in started:
        if each is not None:
            each.mask()
    ready = [
        request if each is None else replace(request, make_constraint=lambda each=each: each)
        for request, each in zip(requests, started, strict=True)
    ]
    began = time.perf_counter()
    return await engine.answers(ready), time.perf_counter() - began


def _gaps_ms(answers: Sequence[Answer]) -> list[float]:
    return [(after - before) * 1e3 for each in answers for before, after in itertools.pairwise(each.arrivals)]


def _problems(case: Case, seed: int, answer: Answer, solo: Answer) -> list[str]:
    problems: list[str] = []
    if not case.fits(answer.text):
        problems.append(f"{case.name}, seed {seed}: {answer.text!r} does not fit ({answer.reason})")
    if (answer.token_ids, answer.reason) != (solo.token_ids, solo.reason):
        problems.append(f"{case.name}, seed {seed}: {answer.text!r} is {solo.text!r} alone")
    return problems
