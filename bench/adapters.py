"""What adapters cost on SmolLM2-135M (4-bit): 16 rows without any, all with one, and with 8 different ones.

Rows of the text workload decode in this process, greedily, the three ways in turns of a few ticks, so that whatever
else the machine does meets all of them. The adapters are random, of one rank, on every linear layer. Mounting is timed
as the worker does it: headers and numbers read and checked, then arrays made.

    python -m bench.adapters [--rows 16] [--adapters 8] [--rank 8] [--tokens 192] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from bench import report
from bench.decode_prefill import installed_model
from models.adapters.adapter import open_adapter
from models.adapters.target import AdapterTarget
from models.checkpoint.checkpoint import open_checkpoint
from models.layers.adapter_bank import AdapterBank
from models.registry import load
from models.step import AdapterUse, NumericPath
from native import kernels

CONTEXT_TOKENS = 1024
PROMPT_TOKENS = 32
# Ticks overlap with the forward of the one before, so only some of them together are timed.
TURN_TICKS = 12
# What is asked of the mixed rows: a share of what rows with one adapter decode.
WANTED_SHARE = 0.75
WAYS = ("without", "one adapter", "different adapters")


def main() -> None:
    """Measure, print the figures and write `bench/results/adapters.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rows": 16, "adapters": 8, "rank": 8, "tokens": 192, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    print(report.heading(f"SmolLM2-135M, 4-bit: {arguments.rows} rows with adapters of rank {arguments.rank}"))
    kernels.set_threads(arguments.threads)
    loaded = load(open_checkpoint(installed_model()), NumericPath.FAST, lambda _: None)
    bank = loaded.adapters
    if bank is None:
        raise SystemExit("the model takes no adapters")
    with tempfile.TemporaryDirectory(prefix="adapters-") as folder:
        slots, mounting = mount_all(bank, Path(folder), arguments.adapters, arguments.rank)
    ways = {way: Rows(loaded, uses_of(way, slots, arguments.rows), arguments.tokens) for way in WAYS}
    ticks: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.tokens // TURN_TICKS):
        for way, rows in ways.items():
            ticks[way].append(rows.turn())
    payload = {"settings": vars(arguments), "mounting": mounting, **figures(ticks, arguments.rows)}
    show(payload)
    print("written:", report.write("adapters", {"benchmark": "adapters", **payload}).relative_to(report.ROOT))


def mount_all(bank: AdapterBank, folder: Path, count: int, rank: int) -> tuple[list[int], dict[str, Any]]:
    """Mount random adapters; return their slots, how long each took, and what they are."""
    slots: list[int] = []
    read_ms: list[float] = []
    mount_ms: list[float] = []
    for number in range(count):
        path = write_random(folder / str(number), bank.targets, rank, number)
        began = time.perf_counter()
        adapter = open_adapter(path, bank.targets).read()
        read = time.perf_counter()
        slots.append(bank.mount(adapter))
        read_ms.append((read - began) * 1e3)
        mount_ms.append((time.perf_counter() - read) * 1e3)
    facts = {
        "layers": len(bank.targets),
        "bytes_each": bank.nbytes // count,
        "read_and_check_ms": report.summary(read_ms),
        "between_steps_ms": report.summary(mount_ms),
    }
    return slots, facts


def write_random(folder: Path, targets: Mapping[str, AdapterTarget], rank: int, seed: int) -> Path:
    """Write an adapter in mlx-lm's layout, float16."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, mx.array] = {}
    for module, target in targets.items():
        for half, shape in (("a", (target.inputs, rank)), ("b", (rank, target.outputs))):
            tensors[f"{module}.lora_{half}"] = mx.array(rng.normal(0, 0.02, shape).astype(np.float16))
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)  # pyright: ignore[reportUnknownMemberType]
    settings = {"fine_tune_type": "lora", "lora_parameters": {"rank": rank, "scale": 2.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def uses_of(way: str, slots: Sequence[int], rows: int) -> list[tuple[AdapterUse, ...]]:
    """Return what each row uses."""
    if way == "without":
        return [()] * rows
    different = slots if way == "different adapters" else slots[:1]
    return [(AdapterUse(different[row % len(different)]),) for row in range(rows)]


class Rows:
    """Rows of the text workload behind short prompts.

    Args:
        loaded: the model.
        uses: what each row uses.
        num_tokens: that each will decode.
    """

    def __init__(self, loaded: Any, uses: Sequence[tuple[AdapterUse, ...]], num_tokens: int) -> None:
        from bench.ticks import silent
        from worker.job import Job
        from worker.outbox import Outbox
        from worker.sequence import SamplingSettings, StoppingSettings, TextRequest
        from worker.text_settings import TextSettings
        from worker.workloads.text import TextWorkload

        settings = TextSettings(max_batch_rows=len(uses), max_context_tokens=CONTEXT_TOKENS)
        self._workload = TextWorkload(lambda _: loaded, settings)
        self._workload.load(lambda _: None)
        self._engine = silent()
        stopping = StoppingSettings(num_tokens + 16)
        for row, used in enumerate(uses):
            prompt = tuple((index * 7919 + 13 + row) % 40_000 + 100 for index in range(PROMPT_TOKENS))
            request = TextRequest(f"row-{row}", prompt, SamplingSettings(temperature=0.0), stopping, adapters=used)
            self._workload.admit(Job(request, Outbox(1 << 30), 0.0))
        for _ in range(len(uses) * PROMPT_TOKENS // 512 + 4):
            self.tick()

    def turn(self) -> float:
        """Have every row decode some tokens, and return the seconds that one took."""
        mx.synchronize()
        began = time.perf_counter()
        for _ in range(TURN_TICKS):
            self.tick()
        mx.synchronize()
        return (time.perf_counter() - began) / TURN_TICKS

    def tick(self) -> None:
        """Do one tick."""
        if (plan := self._workload.plan()) is not None:
            self._workload.run(plan, self._engine)


def figures(ticks: Mapping[str, Sequence[float]], rows: int) -> dict[str, Any]:
    """Sum the ticks up; shares are of the medians, and of the least, which other programs disturb least."""
    median, least = ({way: rows / of(each) for way, each in ticks.items()} for of in (statistics.median, min))
    without, one, different = WAYS
    return {
        "tokens_per_s": {"median": median, "best": least},
        "tick_ms": {way: report.quantiles([each * 1e3 for each in samples]) for way, samples in ticks.items()},
        "one_by_without": {"median": median[one] / median[without], "best": least[one] / least[without]},
        "different_by_one": {"median": median[different] / median[one], "best": least[different] / least[one]},
        "wanted_different_by_one": WANTED_SHARE,
    }


def show(payload: Mapping[str, Any]) -> None:
    """Print the figures."""
    speeds = payload["tokens_per_s"]
    for way, ticks in payload["tick_ms"].items():
        print(f"{way:20} {speeds['median'][way]:6.0f} tokens/s, at best {speeds['best'][way]:.0f}; a tick:", end=" ")
        print(report.tail(ticks, "ms"))
    for name in ("one_by_without", "different_by_one"):
        print(f"{name:20} {payload[name]['median']:6.2f}, at best {payload[name]['best']:.2f}")
    mounting = payload["mounting"]
    print(f"an adapter: {mounting['bytes_each'] / 1e6:.2f} MB on {mounting['layers']} layers")
    print("read and checked", report.spread(mounting["read_and_check_ms"], "ms"))
    print("between steps   ", report.spread(mounting["between_steps_ms"], "ms"))


if __name__ == "__main__":
    main()
