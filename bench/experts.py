"""A mixture several times larger than its memory: experts mapped from a pack beside experts read into a slab.

A Qwen3-MoE of random 4-bit weights (`bench.mixture_folder`, 6 GB) answers the same prompts in memory cgroups of three
sizes. Each run begins cold: the system has forgotten the files, which mincore confirms, and the worker which experts
earlier runs needed. What every run writes is compared with what the model writes when all of it is in memory. With
`resident` in a cage, the load must be refused.

A slab's budget is what the cage leaves beside the rest of the worker, so both ways have the same memory in all.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
from pomona.v1 import (
    common_pb2,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
)

from bench import cage, mixture_folder, report
from bench.decode_prefill import installed_model
from bench.load import servers
from bench.load.plan import Job
from bench.load.prompts import prompts_of
from tests.support.pages import forget, pages_in_memory
from tests.support.served import served
from worker.expert_loading import USAGE_FILE

GB = 1_000_000_000
MB = 1_000_000
# Of gateway and worker beside routed experts: their libraries, the other weights, keys and values, a step's numbers.
REST_BYTES = 600 * MB
LOAD_LIMIT_S = 300.0
RPC_LIMIT_S = 30.0
ANSWER_LIMIT_S = 900.0
SAMPLE_S = 0.2
SETTLE_S = 2.5  # a worker counts with its heartbeats
COLD_SHARE = 0.01


@dataclass
class Round:
    """What the prompts of one round took.

    Attributes:
        prefill_tokens_per_s: of the prompts, from the request to the first token.
        decode_tokens_per_s: of the answers, from their first token.
        read_bytes: that the worker has read from the disk.
        tokens: read and written together.
        hit_ratio: since the load, of the experts asked for those that were there; None where nobody counts.
        stall_s: time that the engine waited for reads.
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    read_bytes: int
    tokens: int
    hit_ratio: float | None
    stall_s: float


@dataclass
class Run:
    """One way in one cage.

    Attributes:
        mode: how experts are held.
        limit_bytes: of the cage; 0: none.
        budget_bytes: of a slab.
        refusal: why the model was not loaded; None: it was.
        load_s: from the request to its answer.
        rounds: the first of them cold.
        most: the most that was held at once, in bytes.
        answers: token ids of each answer.
    """

    mode: str
    limit_bytes: int
    budget_bytes: int = 0
    refusal: str | None = None
    load_s: float = 0.0
    rounds: list[Round] = field(default_factory=list[Round])
    most: dict[str, int] = field(default_factory=dict[str, int])
    answers: list[list[int]] = field(default_factory=list[list[int]])


def main() -> None:
    """Measure every case, print a table, and write `bench/results/experts.json`."""
    arguments = _arguments()
    print(report.heading("Experts on disk: mapped beside slab"), flush=True)
    folder = mixture_folder.write(arguments.folder, arguments.layers, installed_model())
    _pack(folder)
    prompts = prompts_of(folder)
    jobs = [prompts.job(arguments.prompt_tokens, arguments.tokens) for _ in range(arguments.prompts)]
    resident = measure(folder, Run("resident", 0), jobs, arguments)
    runs = [resident, *(measure(folder, run, jobs, arguments) for run in _caged_runs(arguments.limits))]
    same = all(run.answers == resident.answers for run in runs if run.refusal is None)
    print(f"  the same tokens as with all experts in memory: {'yes' if same else 'NO'}")
    if arguments.dry_run:
        print("nothing is written")
        return
    size = sum(file.stat().st_size for file in _files(folder))
    payload = {
        "layers": arguments.layers,
        "disk_bytes": size,
        "prompt_tokens": arguments.prompt_tokens,
        "answer_tokens": arguments.tokens,
        "prompts": arguments.prompts,
        "is_same": same,
        "runs": [{name: value for name, value in asdict(run).items() if name != "answers"} for run in runs],
    }
    path = report.write("experts", {"benchmark": "experts", **payload})
    print("written:", path.relative_to(report.ROOT))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoint; it is written where it is not")
    parser.add_argument("--layers", type=int, default=17, help="of 345 MB each")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 1.25, 1.5], help="of the cages, in GB")
    parser.add_argument("--prompts", type=int, default=2, help="of a round")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--rounds", type=int, default=2, help="with the same prompts; the first is cold")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--set", type=servers.parse_change, action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args()


def _caged_runs(limits: Sequence[float]) -> Iterator[Run]:
    for limit in (int(limit * GB) for limit in limits):
        yield Run("resident", limit)
        yield Run("mapped", limit)
        yield Run("slab", limit, limit - REST_BYTES)


def measure(folder: Path, run: Run, jobs: Sequence[Job], arguments: argparse.Namespace) -> Run:
    """Serve a checkpoint in one way, and put the prompts on it, one after the other, round by round."""
    (folder / USAGE_FILE).unlink(missing_ok=True)
    for file in _files(folder):
        forget(file)
    pages = [page for file in _files(folder) for page in pages_in_memory(file)]
    share = sum(pages) / len(pages)
    if share > COLD_SHARE:
        raise SystemExit(f"{share:.0%} of the files is in memory still: the run would not be cold")
    changes: dict[str, Any] = {"models.experts": run.mode, "worker.prefix_cache_bytes": 0, "models.context_tokens": 512}
    if run.budget_bytes:
        changes["models.expert_budget"] = run.budget_bytes
    changes |= dict(arguments.set)
    with tempfile.TemporaryDirectory(prefix="experts-") as scratch, _caged(run.limit_bytes) as held:
        settings = Path(scratch, "settings.toml")
        settings.write_text(servers.settings(folder, arguments.threads, 1, changes))
        with contextlib.ExitStack() as stack:
            with held.entered() if held else contextlib.nullcontext():
                server = stack.enter_context(served("--settings", str(settings), "--log-level", "warning"))
            channel = stack.enter_context(grpc.insecure_channel(server.address))
            if _loads(channel, run):
                with _watched(held, run):
                    run.rounds = [_round(channel, jobs, run) for _ in range(arguments.rounds)]
            server.stop()
    show(run)
    return run


def show(run: Run) -> None:
    """Print what a run took."""
    limit = f"{run.limit_bytes / GB:.2f} GB" if run.limit_bytes else "no limit"
    print(f"  {run.mode:8} {limit:>8}", end="")
    if run.refusal is not None:
        print(f"  refused: {run.refusal}", flush=True)
        return
    held = ", ".join(f"{name} {size / MB:.0f} MB" for name, size in run.most.items())
    print(f"  budget {run.budget_bytes / MB:.0f} MB, loaded in {run.load_s:.1f} s; most held: {held or 'not measured'}")
    for number, taken in enumerate(run.rounds):
        hits = "" if taken.hit_ratio is None else f", {taken.hit_ratio:.1%} hits"
        print(
            f"    {'warm' if number else 'cold'}: prefill {taken.prefill_tokens_per_s:6.2f} tokens/s,"
            f" decode {taken.decode_tokens_per_s:6.2f} tokens/s, {taken.read_bytes / taken.tokens / MB:7.1f} MB read"
            f" a token{hits}, stalled {taken.stall_s:.1f} s",
            flush=True,
        )


def _pack(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "gateway", "pack-experts", str(folder)]
    done = subprocess.run(command, cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit("the experts cannot be packed")


def _files(folder: Path) -> list[Path]:
    """Return the shards, and the pack."""
    return [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size > MB]


@contextmanager
def _caged(limit_bytes: int) -> Generator[cage.Cage | None]:
    if not limit_bytes:
        yield None
        return
    with cage.cage(limit_bytes) as made:
        yield made


def _loads(channel: grpc.Channel, run: Run) -> bool:
    start = time.perf_counter()
    request = model_pb2.LoadModelRequest(model=servers.MODEL)
    try:
        model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, timeout=LOAD_LIMIT_S)
    except grpc.RpcError as error:
        run.refusal = f"{error.code().name}: {error.details()}"
    run.load_s = time.perf_counter() - start
    return run.refusal is None


@contextmanager
def _watched(held: cage.Cage | None, run: Run) -> Generator[None]:
    """Keep the most that a cage holds in the block."""
    ended = threading.Event()

    def watch() -> None:
        while held and not ended.wait(SAMPLE_S):
            for name, size in held.held()._asdict().items():
                run.most[name] = max(run.most.get(name, 0), size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _round(channel: grpc.Channel, jobs: Sequence[Job], run: Run) -> Round:
    before = _counted(channel)
    prefill_s = decode_s = 0.0
    answers: list[list[int]] = []
    for job in jobs:
        start = time.perf_counter()
        moments = list(_answer(channel, job))
        first = moments[0][0]
        prefill_s += first - start
        decode_s += moments[-1][0] - first
        answers.append([token for _, tokens in moments for token in tokens])
    run.answers = run.answers or answers
    if answers != run.answers:
        raise SystemExit("the same prompts have other answers")
    time.sleep(SETTLE_S)
    after = _counted(channel)
    prompt_tokens = sum(len(job.token_ids) for job in jobs)
    written = sum(len(answer) for answer in answers)
    return Round(
        prefill_tokens_per_s=prompt_tokens / prefill_s,
        decode_tokens_per_s=(written - len(jobs)) / decode_s,
        read_bytes=after.read_bytes - before.read_bytes,
        tokens=prompt_tokens + written,
        hit_ratio=after.hit_ratio or None,
        stall_s=after.stall_s - before.stall_s,
    )


def _answer(channel: grpc.Channel, job: Job) -> Iterator[tuple[float, Sequence[int]]]:
    """Yield the moment of each delta, and its tokens."""
    request = generation_pb2.StreamGenerateRequest(
        model=servers.MODEL,
        spec=generation_pb2.GenerationSpec(
            token_ids=common_pb2.TokenIds(ids=job.token_ids),
            sampling=generation_pb2.SamplingParams(temperature=0.0),
            stopping=generation_pb2.StoppingParams(max_tokens=job.num_tokens, ignore_eos=True),
            output=generation_pb2.OutputOptions(token_ids=True),
        ),
    )
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    for event in stub.StreamGenerate(request, timeout=ANSWER_LIMIT_S):
        if event.WhichOneof("event") == "delta":
            yield time.perf_counter(), [token.id for token in event.delta.tokens]


@dataclass(frozen=True)
class _Counted:
    """What the worker has counted since it started."""

    read_bytes: int
    hit_ratio: float
    stall_s: float


def _counted(channel: grpc.Channel) -> _Counted:
    """Ask the system for what the worker has read from disk, and the worker for the rest."""
    request = model_pb2.GetModelRequest(model=servers.MODEL)
    model = model_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=RPC_LIMIT_S).model
    lines = Path(f"/proc/{model.workers[0].pid}/io").read_text().splitlines()
    read = dict(line.split(": ") for line in lines)["read_bytes"]
    wanted = server_pb2.GetStatsRequest(models=[servers.MODEL])
    stats = server_pb2_grpc.ServerServiceStub(channel).GetStats(wanted, timeout=RPC_LIMIT_S).models[0]
    return _Counted(int(read), stats.expert_hit_ratio, stats.expert_stall_us_total / 1e6)


if __name__ == "__main__":
    main()
