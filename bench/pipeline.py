"""What pipelining hides: the cost of a host that works 1 ms for every token, in both orders of the same verbs.

Pipelined is the text workload as it is served, with a constraint that takes its time. In sequence: build the next
forward, read the token, let the host work, then start the forward and sample. The model is a random Llama whose step
takes longer than the host's work, or the one given. `busy` hosts burn a core, `waiting` ones leave it to the device.
Every case has a fresh request in every round.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import native.blas
from bench import report

LLAMA = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8}
PROMPT_IDS = tuple(range(1, 33))
WARMUP_TOKENS = 4
MAX_TOKENS = 2000


def main() -> None:
    """Measure, print a line for each host and order, and write `bench/results/pipeline.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder or .gguf; else a random Llama is written")
    parser.add_argument("--work-ms", type=float, default=1.0, help="what the host does for each token")
    parser.add_argument("--tokens", type=int, default=10, help="tokens in each sample")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each order and host")
    parser.add_argument("--threads", type=int, default=1, help="of BLAS: 1 leaves a busy host a core of its own")
    arguments = parser.parse_args()
    print(report.heading("What pipelining hides of a host's work"))
    native.blas.load(arguments.threads)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as aside:
        step = Stepper(arguments.model or _random_llama(Path(folder)), arguments.work_ms / 1e3, aside)
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


class Host:
    """A constraint that forbids nothing and takes its time."""

    is_complete = False

    def __init__(self, kind: str, work_s: float) -> None:
        self._kind = kind
        self._work_s = work_s

    def advance(self, token_id: int) -> None:
        """Allow whatever came."""

    def skip(self) -> tuple[int, ...]:
        """Force nothing."""
        return ()

    def mask(self) -> None:
        """Work for the time that was asked for, and allow every token."""
        if self._kind == "waiting":
            time.sleep(self._work_s)
        elif self._kind == "busy":
            end = time.perf_counter() + self._work_s
            while time.perf_counter() < end:
                pass


class Reporter:
    """Stands in for the engine: drops events and has one thread for work beside this one."""

    def __init__(self, aside: ThreadPoolExecutor | None) -> None:
        self._aside = aside

    def post(self, job: Any, event: Any) -> None:
        """Drop an event."""

    def flush(self) -> None:
        """Send nothing."""

    def tick(self) -> None:
        """Count nothing."""

    def aside(self, work: Callable[[], Any]) -> Future[Any]:
        """Run beside this thread, or at once where there is no other."""
        if self._aside is not None:
            return self._aside.submit(work)
        done: Future[Any] = Future()
        done.set_result(work())
        return done


class Stepper:
    """Decodes with one model, a fresh request for each sample."""

    def __init__(self, checkpoint: Path, work_s: float, aside: ThreadPoolExecutor) -> None:
        from models.checkpoint.checkpoint import open_checkpoint
        from models.registry import load
        from models.step import NumericPath

        self._loaded = load(open_checkpoint(checkpoint), NumericPath.FAST, lambda _: None)
        self._work_s = work_s
        self._beside = Reporter(aside)
        self._in_line = Reporter(None)

    def seconds_per_token(self, case: Case, num_tokens: int) -> float:
        """Decode some tokens in the order of `case` and return the time of one."""
        host = Host(case.host, self._work_s)
        step = self._step(host, self._beside if case.is_pipelined else self._in_line)
        for _ in range(WARMUP_TOKENS):
            step()
        started = time.perf_counter()
        for _ in range(num_tokens):
            step()
        return (time.perf_counter() - started) / num_tokens

    def _step(self, host: Host, reporter: Reporter) -> Callable[[], None]:
        from worker.job import Job
        from worker.outbox import Outbox
        from worker.text_settings import TextSettings
        from worker.workloads.text import TextWorkload

        workload = TextWorkload(lambda _: self._loaded, TextSettings())
        workload.load(lambda _: None)
        request = replace(_request(), make_constraint=lambda: host)
        workload.admit(Job(request, Outbox(1 << 30), 0.0))

        def step() -> None:
            if (plan := workload.plan()) is not None:
                workload.run(plan, reporter)

        step()
        return step


def measure(step: Stepper, rounds: int, num_tokens: int) -> dict[Case, list[float]]:
    """Return milliseconds per token of every case, in rounds that visit each case once."""
    samples: dict[Case, list[float]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            samples[case].append(step.seconds_per_token(case, num_tokens) * 1e3)
    return samples


def digest(samples: dict[Case, list[float]]) -> list[dict[str, Any]]:
    """Print each case and what its host costs over an idle one in the same order, and return the figures.

    The cost compares the fastest samples: what else runs on the machine only ever adds.
    """
    results: list[dict[str, Any]] = []
    for case, found in samples.items():
        cost = min(found) - min(samples[Case(case.is_pipelined, "idle")])
        order = "pipelined" if case.is_pipelined else "in sequence"
        figures = report.summary(found)
        print(f"{order:12} {case.host:8} {report.spread(figures, 'ms/token')}   the host costs {cost:6.3f} ms")
        results.append({"order": order, "host": case.host, "ms_per_token": figures, "host_cost_ms": cost})
    return results


def _request() -> Any:
    from worker.sequence import SamplingSettings, StoppingSettings, TextRequest

    return TextRequest("bench", PROMPT_IDS, SamplingSettings(temperature=0.0), StoppingSettings(MAX_TOKENS))


def _random_llama(folder: Path) -> Path:
    from tests.support.tiny_models import write_llama

    return write_llama(folder / "llama", config=LLAMA)


if __name__ == "__main__":
    main()
