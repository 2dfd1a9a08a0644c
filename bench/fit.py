"""What `pomona fit` foretells of a worker, beside what the worker then takes: SmolLM2-135M (4-bit), and Whisper base.

Every row is given its whole context at once, and nothing is kept for later prompts, so that what was foretold as the
most is taken. For speech a row is a recording that is heard while the others are. The footprint is the worker's own
measure, its proportional set size on Linux; the most of it counts.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict
from pomona.v1 import model_pb2, model_pb2_grpc, transcription_pb2, transcription_pb2_grpc

from bench import report
from bench.decode_prefill import installed_model
from bench.load import client, servers
from bench.load.plan import Lane
from bench.load.prompts import prompts_of
from bench.memory import SETTLE_S, Taken, watched

LIMIT_S = 400.0
RPC_LIMIT_S = 60.0
ANSWER_TOKENS = 16
HEARINGS = 8
RECORDING = report.ROOT / "tests" / "models" / "whisper" / "recordings" / "austen_0870.wav"
GOAL = 0.15
MB = 1_000_000


class Case(NamedTuple):
    """How a model is run: rows, tokens of each (0: it is for speech), how keys and values are kept."""

    rows: int
    context_tokens: int = 0
    kv_scheme: str = "none"


TEXT = (Case(1, 512), Case(1, 4096), Case(4, 2048), Case(16, 512), Case(1, 2048, "8"))
SPEECH = (Case(1), Case(2))
Load = Callable[[Mapping[str, Any], Case], None]


def main() -> None:
    """Measure every case, print both figures, and write `bench/results/fit.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    arguments = parser.parse_args()
    print(report.heading("Memory foretold and taken"), flush=True)
    from tests.support.whisper_base import whisper_base_path

    smol, whisper = installed_model(), whisper_base_path()
    results = {
        "smollm2": [measure(smol, case, arguments.threads, _writer(smol)) for case in TEXT],
        "whisper-base": [measure(whisper, case, arguments.threads, hear) for case in SPEECH],
    }
    if arguments.dry_run:
        print("nothing is written")
        return
    path = report.write("fit", {"benchmark": "fit", "goal": GOAL, "models": results})
    print("written:", path.relative_to(report.ROOT))


def measure(checkpoint: Path, case: Case, threads: int, load: Load) -> dict[str, Any]:
    """Run a worker as a case says.

    Returns:
        What was foretold, what was taken, and `error`: how far the first is above the second, as a share of it.
    """
    changes: dict[str, Any] = {"worker.prefix_cache_bytes": 0}
    if case.context_tokens:
        changes |= {"models.context_tokens": case.context_tokens, "models.kv_scheme": case.kv_scheme}
    with (
        servers.pomona(checkpoint, threads, case.rows, changes) as target,
        grpc.insecure_channel(target["address"]) as channel,
    ):
        stub = model_pb2_grpc.ModelServiceStub(channel)
        request = model_pb2.EstimateModelRequest(model=servers.MODEL)
        estimate = stub.EstimateModel(request, timeout=RPC_LIMIT_S).estimate
        taken = Taken()
        with watched(stub, taken):
            load(target, case)
            time.sleep(SETTLE_S)
    error = estimate.total_bytes / taken.most - 1
    print(
        f"  {checkpoint.stem[:12]:12} {case.rows:2} rows of {case.context_tokens:4}, kv {case.kv_scheme:4}"
        f"  foretold {estimate.total_bytes / MB:6.1f} MB (kv {estimate.kv_bytes / MB:.1f},"
        f" step {estimate.transient_bytes / MB:.1f}), taken {taken.most / MB:6.1f} MB (kv {taken.caches / MB:.1f}):"
        f" {error:+.1%}{'' if abs(error) <= GOAL else ', OVER THE GOAL'}",
        flush=True,
    )
    return {**case._asdict(), "foretold": MessageToDict(estimate), "taken_bytes": taken.most, "error": error}


def hear(target: Mapping[str, Any], case: Case) -> None:
    """Have recordings transcribed side by side, a few times."""
    audio = RECORDING.read_bytes()
    with grpc.insecure_channel(target["address"]) as channel, ThreadPoolExecutor(case.rows) as threads:
        stub = transcription_pb2_grpc.TranscriptionServiceStub(channel)
        request = transcription_pb2.TranscribeRequest(model=servers.MODEL, audio=audio)
        for _ in range(HEARINGS):
            answers = [threads.submit(stub.Transcribe, request, timeout=LIMIT_S) for _ in range(case.rows)]
            for answer in answers:
                answer.result()


def _writer(checkpoint: Path) -> Load:
    """Return what gives every row a prompt that fills its context, but for a short answer."""
    prompts = prompts_of(checkpoint)

    def load(target: Mapping[str, Any], case: Case) -> None:
        prompt = prompts.job(case.context_tokens - ANSWER_TOKENS - 1, ANSWER_TOKENS)
        client.run([Lane("running", (prompt,)) for _ in range(case.rows)], LIMIT_S, target)

    return load


if __name__ == "__main__":
    main()
