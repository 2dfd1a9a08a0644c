"""What pipelining hides: the cost of a host that works 1 ms for every token, in both orders of the same verbs.

Pipelined: submit the next forward, read the token, let the host work, sample. In sequence: read, work, then submit and
sample. The model is a random Llama whose step takes longer than the host's work, or the one given. `busy` hosts burn a
core, `waiting` ones leave it to the device; orders and hosts alternate, each in turn on a fresh row.
"""

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import native.blas
from bench import report

LLAMA = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8}
PROMPT_IDS = tuple(range(1, 33))
WARMUP_TOKENS = 4


def main() -> None:
    """Measure, print a line for each host and order, and write `bench/results/pipeline.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder or .gguf; else a random Llama is written")
    parser.add_argument("--work-ms", type=float, default=1.0, help="what the host does for each token")
    parser.add_argument("--tokens", type=int, default=60, help="tokens in each sample")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each order and host")
    arguments = parser.parse_args()
    print(report.heading("What pipelining hides of a host's work"))
    native.blas.load(None)
    with tempfile.TemporaryDirectory() as folder:
        step = Stepper(arguments.model or _random_llama(Path(folder)), arguments.work_ms / 1e3)
        samples = measure(step, arguments.rounds, arguments.tokens)
    result = {
        "benchmark": "pipeline",
        "work_ms": arguments.work_ms,
        "tokens": arguments.tokens,
        "results": digest(samples),
    }
    print("written:", report.write("pipeline", result).relative_to(report.ROOT))


@dataclass(frozen=True, slots=True)
class Case:
    """An order of the verbs, and what the host does."""

    is_pipelined: bool
    host: str


HOSTS = ("idle", "busy", "waiting")
CASES = tuple(Case(is_pipelined, host) for host in HOSTS for is_pipelined in (True, False))


def _work(host: str, seconds: float) -> None:
    """Do what a constraint would do on the host for one token."""
    if host == "waiting":
        time.sleep(seconds)
    elif host == "busy":
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass


class Stepper:
    """Decodes with one model, a fresh row for each sample."""

    def __init__(self, checkpoint: Path, work_s: float) -> None:
        from models.checkpoint.checkpoint import open_checkpoint
        from models.registry import load
        from models.step import NumericPath

        self._loaded = load(open_checkpoint(checkpoint), NumericPath.FAST, lambda _: None)
        self._work_s = work_s

    def seconds_per_token(self, case: Case, num_tokens: int) -> float:
        """Decode some tokens in the order of `case` and return the time of one."""
        row = self._row(num_tokens)
        order = _pipelined if case.is_pipelined else _in_sequence
        verbs = functools.partial(order, row, functools.partial(_work, case.host, self._work_s))
        for _ in range(WARMUP_TOKENS):
            verbs()
        started = time.perf_counter()
        for _ in range(num_tokens):
            verbs()
        return (time.perf_counter() - started) / num_tokens

    def _row(self, num_tokens: int) -> Any:
        from models.step import RowPlan
        from worker.row import Row
        from worker.sequence import SamplingSettings, Sequence, State, StoppingSettings, TextRequest

        limit = num_tokens + 2 * WARMUP_TOKENS
        request = TextRequest("bench", PROMPT_IDS, SamplingSettings(temperature=0.0), StoppingSettings(limit))
        sequence = Sequence(request, self._loaded.tokenizer.token_bytes, 1 << 20)
        sequence.slot = 0
        sequence.move(State.PREFILLING)
        row = Row(sequence, self._loaded.model, self._loaded.model.make_cache(1), self._loaded.path)
        row.prefill(RowPlan(0, PROMPT_IDS, 0, (len(PROMPT_IDS) - 1,)))
        row.sample()
        return row


def measure(step: Stepper, rounds: int, num_tokens: int) -> dict[Case, list[float]]:
    """Return milliseconds per token of every case, in rounds that visit each case once."""
    samples: dict[Case, list[float]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            samples[case].append(step.seconds_per_token(case, num_tokens) * 1e3)
    return samples


def digest(samples: dict[Case, list[float]]) -> list[dict[str, Any]]:
    """Print each case with what its host costs over an idle one in the same order and round, and return the figures."""
    results: list[dict[str, Any]] = []
    for case, found in samples.items():
        idle = samples[Case(case.is_pipelined, "idle")]
        costs = [with_host - without for with_host, without in zip(found, idle, strict=True)]
        order = "pipelined" if case.is_pipelined else "in sequence"
        figures = {"ms_per_token": report.summary(found), "host_cost_ms": report.summary(costs)}
        print(f"{order:12} {case.host:8} {report.spread(figures['ms_per_token'], 'ms/token')}", end="")
        print(f"   host costs {report.spread(figures['host_cost_ms'], 'ms')}" if case.host != "idle" else "")
        results.append({"order": order, "host": case.host, **figures})
    return results


def _pipelined(row: Any, work: Callable[[], None]) -> None:
    row.submit()
    token_id = row.read()
    work()
    _keep(row, token_id)


def _in_sequence(row: Any, work: Callable[[], None]) -> None:
    token_id = row.read()
    work()
    row.submit()
    _keep(row, token_id)


def _keep(row: Any, token_id: int) -> None:
    row.sequence.advance(token_id)
    row.accept(token_id)
    row.sample()


def _random_llama(folder: Path) -> Path:
    from tests.support.tiny_models import write_llama

    return write_llama(folder / "llama", config=LLAMA)


if __name__ == "__main__":
    main()
