"""What a constraint costs: to compile ten large schemas, and for each token under several grammars.

* Compiling: the first time, which is in the child and then in this process, and when the schema is known.
* A token, p50 and p99: asking what is forced, its mask, taking it, and all three, while random tokens of the mask are
  drawn; with the vocabulary of SmolLM2 and with one of 150,000 tokens, made of it and of pairs of its tokens.
* Sixteen masks of different grammars, one after the other, and on the library's own threads.
* Sixteen rows of SmolLM2 in the engine, with sixteen different constraints against none: tokens a second.

`--runs` answers sixteen questions at once so many times instead: each answer must fit its constraint, and be the one
that its row gives alone.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from bench import report
from bench.constraint_rows import check_runs, measure_engine
from bench.constraint_schemas import schemas
from models.checkpoint.gguf import read_gguf_header
from models.checkpoint.gguf_tokenizer import gguf_tokenizer
from models.checkpoint.tokenizer import Tokenizer
from tests.support.smollm2 import smollm2_path
from worker.constraints.compiler import GrammarCompiler
from worker.constraints.constraint import GrammarConstraint
from worker.constraints.grammar import Grammar, Kind
from worker.constraints.matching import Matcher, make_matcher
from worker.constraints.source import source_of
from worker.constraints.tokens import ConstrainedTokens, constrained_tokens

LARGE_VOCABULARY = 150_000
ROWS = 16
TIMEOUT_S = 60.0
SEED = 11

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Widened:
    """SmolLM2's tokenizer with pairs of its tokens behind it, as a stand-in for a larger one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        rng = np.random.default_rng(SEED)
        pairs = rng.integers(tokenizer.vocab_size, size=(vocab_size - tokenizer.vocab_size, 2)).tolist()
        self.eos_token_ids = tokenizer.eos_token_ids
        self.encode = tokenizer.encode
        self.special_bytes = tokenizer.special_bytes
        self._first = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._pairs = [tokenizer.token_bytes(left) + tokenizer.token_bytes(right) for left, right in pairs]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token of SmolLM2, or of a pair."""
        return self._tokenizer.token_bytes(token_id) if token_id < self._first else self._pairs[token_id - self._first]


def main() -> None:
    """Measure, print, and write `bench/results/constraints.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="compilations of each schema")
    parser.add_argument("--tokens", type=int, default=2000, help="drawn under each grammar")
    parser.add_argument("--threads", type=int, default=2, help="of the library's executor")
    parser.add_argument("--engine-rounds", type=int, default=5, help="of sixteen rows in the engine, each way")
    parser.add_argument("--engine-tokens", type=int, default=100, help="of each of these rows")
    parser.add_argument("--runs", type=int, default=0, help="only answer sixteen questions at once, so many times")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    arguments = parser.parse_args()
    print(report.heading("Constraints: compiling, and the cost of a token"), flush=True)
    if arguments.runs:
        asyncio.run(check_runs(arguments.runs))
        return
    path = smollm2_path()
    small = gguf_tokenizer(read_gguf_header(path).metadata, path.name)
    vocabularies = {"SmolLM2": timed_tokens(small, small.vocab_size)}
    vocabularies["150,000 tokens"] = timed_tokens(Widened(small, LARGE_VOCABULARY), LARGE_VOCABULARY)
    compiling = asyncio.run(measure_compiling(vocabularies["SmolLM2"], arguments.rounds))
    tokens = {name: measure_tokens(each, arguments.tokens) for name, each in vocabularies.items()}
    rows = {name: measure_rows(each, arguments.threads) for name, each in vocabularies.items()}
    engine = asyncio.run(measure_engine(arguments.engine_rounds, arguments.engine_tokens))
    if arguments.dry_run:
        print("nothing is written")
        return
    payload = {
        "benchmark": "constraints",
        "compiling": compiling,
        "tokens_us": tokens,
        "rows_us": rows,
        "engine": engine,
    }
    print("written:", report.write("constraints", payload).relative_to(report.ROOT))


def timed_tokens(tokenizer: Any, vocab_size: int) -> ConstrainedTokens:
    """Build a vocabulary and say how long it took."""
    began = time.perf_counter()
    tokens = constrained_tokens(tokenizer, vocab_size, ())
    print(f"  a vocabulary of {vocab_size} tokens is built in {time.perf_counter() - began:.2f} s")
    return tokens


async def measure_compiling(tokens: ConstrainedTokens, rounds: int) -> dict[str, Any]:
    """Return for each schema its bytes, and the milliseconds of a first and of another compilation."""
    print("\ncompiling: the first time, with the trial in the child; known already, for one sequence")
    results: dict[str, Any] = {}
    for name, schema in schemas().items():
        text = json.dumps(schema)
        first: list[float] = []
        again: list[float] = []
        for _ in range(rounds):
            compiler = GrammarCompiler(tokens)
            await compiler.compile(Grammar("regex", "a", name), TIMEOUT_S)  # starts the child
            first.append(await _compile_ms(compiler, Grammar("json_schema", text, name)))
            again.append(await _compile_ms(compiler, Grammar("json_schema", text, name)))
            await compiler.close()
        results[name] = {"bytes": len(text), "first_ms": report.summary(first), "known_ms": report.summary(again)}
        told = f"{report.spread(results[name]['first_ms'], 'ms')} {report.spread(results[name]['known_ms'], 'ms')}"
        print(f"{name:20s} {len(text):7d} bytes {told}", flush=True)
    return results


async def _compile_ms(compiler: GrammarCompiler, grammar: Grammar) -> float:
    began = time.perf_counter()
    await compiler.compile(grammar, TIMEOUT_S)
    return (time.perf_counter() - began) * 1e3


def grammars() -> dict[str, tuple[Kind, str]]:
    """Return the grammars that tokens are drawn under."""
    large = schemas()
    choices = [f"choice {index} of many" for index in range(1000)]
    return {
        "person": ("json_schema", json.dumps(PERSON)),
        "any object": ("json_object", ""),
        "event log": ("json_schema", json.dumps(large["event log"])),
        "patient record": ("json_schema", json.dumps(large["patient record"])),
        "regex, identifiers": ("regex", r"[a-z_][a-z0-9_]{0,30}( [a-z_][a-z0-9_]{0,30})*"),
        "regex, any text": ("regex", r"(?s:.*)"),
        "1,000 choices": ("choices", json.dumps(choices)),
        "lark, arithmetic": ("lark", 'start: term (("+" | "-") term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]+/'),
    }


def measure_tokens(tokens: ConstrainedTokens, num_tokens: int) -> dict[str, Any]:
    """Return for each grammar the microseconds of a token: of all of it, and of each of its parts."""
    print(f"\na token, vocabulary of {tokens.vocab_size}: microseconds")
    results: dict[str, Any] = {}
    for name, (kind, text) in grammars().items():
        samples = _draw(tokens, kind, text, num_tokens)
        results[name] = {what: report.quantiles(values) for what, values in samples.items()}
        for what, quantiles in results[name].items():
            print(f"{name:20s} {what:8s} {report.tail(quantiles, 'us')}", flush=True)
    return results


def _draw(tokens: ConstrainedTokens, kind: Kind, text: str, num_tokens: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(SEED)
    samples: dict[str, list[float]] = {"whole": [], "skip": [], "mask": [], "advance": []}
    constraint = _constraint(tokens, kind, text)
    gc.disable()
    for _ in range(num_tokens):
        _timed(samples["skip"], constraint.skip)
        if constraint.is_complete:
            constraint = _constraint(tokens, kind, text)
            continue
        mask = _timed(samples["mask"], constraint.mask)
        token_id = _any_of(rng, mask)
        if token_id in tokens.eos_ids:
            constraint = _constraint(tokens, kind, text)
            continue
        _timed(samples["advance"], lambda: constraint.advance(token_id))  # noqa: B023 (called at once)
        samples["whole"].append(sum(samples[part][-1] for part in ("skip", "mask", "advance")))
    gc.enable()
    return samples


def _timed(samples: list[float], call: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = call()
    samples.append((time.perf_counter() - began) * 1e6)
    return result


def _constraint(tokens: ConstrainedTokens, kind: Kind, text: str) -> GrammarConstraint:
    """Return a compiled constraint: its first mask is computed."""
    source = source_of(kind, text, tokens.special_ids)
    matcher = make_matcher(tokens.vocabulary, source.text, kind)
    return GrammarConstraint(lambda: matcher, Grammar(kind, text, "bench"), tokens, frozenset())


def _any_of(rng: np.random.Generator, mask: NDArray[np.uint32]) -> int:
    return int(rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))


def measure_rows(tokens: ConstrainedTokens, threads: int) -> dict[str, Any]:
    """Return the microseconds of sixteen masks: one after the other, and on the library's threads."""
    pairs = list(grammars().values())
    matchers: list[Matcher] = []
    for index in range(ROWS):
        kind, text = pairs[index % len(pairs)]
        source = source_of(kind, text, tokens.special_ids)
        matchers.append(make_matcher(tokens.vocabulary, source.text, kind))
    masks = np.zeros((ROWS, -(-tokens.vocabulary.vocab_size // 32)), np.int32)
    executor = LLExecutor(threads)
    alone: list[float] = []
    together: list[float] = []
    rows = list(zip(matchers, range(ROWS), strict=True))
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        copies = [(matcher.deep_copy(), row) for matcher, row in rows]
        _timed(alone, lambda: [_fill(matcher, masks[row]) for matcher, row in rows])
        _timed(together, lambda: fill_next_token_bitmask_par(executor, copies, masks))  # noqa: B023 (called at once)
        for matcher, row in rows:
            matcher.consume_token(_any_of(rng, masks[row].view(np.uint32)))
            if matcher.is_stopped():
                matcher.reset()
    results = {"one after the other": report.quantiles(alone), f"on {threads} threads": report.quantiles(together)}
    print(f"\n{ROWS} masks of {len(pairs)} grammars, vocabulary of {tokens.vocab_size}: microseconds")
    for what, quantiles in results.items():
        print(f"{what:20s} {report.tail(quantiles, 'us')}", flush=True)
    return results


def _fill(matcher: Matcher, mask: NDArray[np.int32]) -> None:
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


if __name__ == "__main__":
    main()
