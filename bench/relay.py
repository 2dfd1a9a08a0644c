"""What the gateway adds: to each token, to the first one, and how many messages one core of it carries.

Four processes: a worker that follows a script, the gateway's relay before it, a load generator, and this one. Every
figure is measured directly and through the gateway, alternately in one run. Messages carry the time at which the
worker sent them, from the clock that all processes of a machine share.

Capacity is told twice: messages a second of the clock, for which worker, gateway and load generator share the cores,
and messages a second of the gateway's own processor time, which is what one core of it carries.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pomona.v1 import generation_pb2, model_pb2

from bench import report
from gateway.admission import Admission, AdmissionLimits
from gateway.catalogue import Catalogue, CatalogueModel
from gateway.exchange import RelayLimits, RelayParts
from gateway.logs import LogRing, make_log
from gateway.model_status import Instance, Lease
from gateway.relay import Cardinality, Relay
from gateway.requests import Requests
from tests.support.scripted_worker import ScriptedPool

MODEL = "scripted"
STREAM = "/bench.Kinds/Stream"
ECHO = "/bench.Kinds/Echo"
METHODS = {STREAM: Cardinality(False, True), ECHO: Cardinality(True, True)}
MESSAGE_BYTES = 48
STREAMS = 16
PACED_STREAMS = 8
PACED_PER_S = 100
START_LIMIT_S = 20.0
LOAD_LIMIT_S = 120.0
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
SERVER_OPTIONS = (("grpc.so_reuseport", 0),)


def main() -> None:
    """Measure, print and write the figures, or play one of the other three parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("worker", "gateway", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--arguments", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is measured on each way")
    parser.add_argument("--messages", type=int, default=2000, help="messages of a stream when capacity is measured")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a paced round lasts")
    told = parser.parse_args()
    parts: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"worker": worker, "gateway": gateway, "load": load}
    if told.part:
        _run(parts[told.part](*told.arguments))
    else:
        measure(told.rounds, told.messages, told.seconds)


def measure(rounds: int, messages: int, seconds: float) -> None:
    """Run every scenario on both ways and write `bench/results/relay.json`."""
    print(report.heading("What the gateway adds"))
    with tempfile.TemporaryDirectory(prefix="relay-", dir="/tmp") as folder:
        ways = {"direct": f"unix:{folder}/w.sock", "gateway": f"unix:{folder}/g.sock"}
        with _part("worker", ways["direct"]), _part("gateway", ways["gateway"], ways["direct"]) as gateway_pid:
            scenarios = {
                "server_streaming": ("capacity", STREAM, str(messages)),
                "bidirectional": ("capacity", ECHO, str(messages // 2)),
                "paced": ("paced", str(seconds)),
                "first_message": ("first", "200"),
            }
            raw = {name: _both_ways(ways, gateway_pid, scenario, rounds) for name, scenario in scenarios.items()}
    figures = {
        "server_streaming": _capacity(raw["server_streaming"]),
        "bidirectional": _capacity(raw["bidirectional"]),
        "added_per_message_ms": _added(raw["paced"]),
        "added_to_first_message_ms": _added(raw["first_message"]),
    }
    setup = {
        "streams": STREAMS,
        "message_bytes": MESSAGE_BYTES,
        "paced": f"{PACED_STREAMS} streams of {PACED_PER_S} messages a second",
        "rounds": rounds,
    }
    print(json.dumps(figures, indent=2))
    print(report.write("relay", {"setup": setup, "figures": figures, "rounds": raw}))


def _both_ways(ways: dict[str, str], gateway_pid: int, scenario: tuple[str, ...], rounds: int) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, address in ways.items():
            before_s = _processor_s(gateway_pid)
            result = _load(address, *scenario)
            result["gateway_processor_s"] = _processor_s(gateway_pid) - before_s
            found[way].append(result)
    return found


def _capacity(raw: dict[str, list[Any]]) -> dict[str, Any]:
    per_s = {way: [one["messages"] / one["elapsed_s"] for one in results] for way, results in raw.items()}
    busy = [one["messages"] / one["gateway_processor_s"] for one in raw["gateway"] if one["gateway_processor_s"] > 0]
    return {
        "direct_messages_per_s": report.summary(per_s["direct"]),
        "gateway_messages_per_s": report.summary(per_s["gateway"]),
        "gateway_messages_per_processor_s": report.summary(busy) if busy else None,
    }


def _added(raw: dict[str, list[Any]]) -> dict[str, Any]:
    """Return, over the rounds, by how much the gateway's quantiles exceed the direct ones of the same round."""
    pairs = list(zip(raw["direct"], raw["gateway"], strict=True))
    return {
        name: {
            "direct": report.summary([one[name] for one in raw["direct"]]),
            "gateway": report.summary([one[name] for one in raw["gateway"]]),
            "added": report.summary([through[name] - direct[name] for direct, through in pairs]),
        }
        for name in ("p50_ms", "p99_ms")
    }


@contextlib.contextmanager
def _part(name: str, *arguments: str) -> Generator[int]:
    """Run another part for the length of the block; give its process id once it is ready."""
    command = (sys.executable, "-m", "bench.relay", "--part", name, "--arguments", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=report.ROOT) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the {name} did not start")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_LIMIT_S)


def _load(address: str, *scenario: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "bench.relay", "--part", "load", "--arguments", address, *scenario)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LOAD_LIMIT_S, check=True, cwd=report.ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _processor_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds; 0 where the system does not say it finely."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def worker(address: str) -> None:
    """Answer by the script in each request: `count` messages, one each `interval_us` microseconds."""

    async def stream(body: bytes, _context: Any) -> AsyncIterator[bytes]:
        script = json.loads(generation_pb2.GenerateRequest.FromString(body).spec.prompt)
        interval_s, next_s = script["interval_us"] / 1e6, time.monotonic()
        for _ in range(script["count"]):
            if interval_s:
                next_s += interval_s
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            yield time.monotonic_ns().to_bytes(8, "big").ljust(MESSAGE_BYTES, b"x")

    async def echo(source: Any, _context: Any) -> AsyncIterator[bytes]:
        async for message in source:
            yield message

    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers = {
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Kinds", handlers),))
    await _serve(server, address)


async def gateway(address: str, worker_address: str) -> None:
    """Relay to the worker, as the product does; log lines go nowhere."""
    channel = grpc.aio.insecure_channel(worker_address, options=OPTIONS)
    instance = Instance("bench", 0, channel, "", asyncio.get_running_loop().create_future())
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230, PTH123 - it never waits
        parts = RelayParts(
            catalogue=Catalogue([CatalogueModel(MODEL, Path())], _describe),
            admission=Admission(AdmissionLimits(1000, 1000, 0, 1.0)),
            requests=Requests(),
            workers=_OneWorker(instance),
            limits=RelayLimits(600.0, 30.0),
            log=make_log(LogRing(1000), "info", "json", nowhere),
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((Relay(METHODS, parts),))
        await _serve(server, address)
    await channel.close()


class _OneWorker(ScriptedPool):
    """Gives every request the same worker."""

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self._instance = instance

    async def acquire(self, model: str, timeout_s: float | None) -> Lease:  # noqa: ARG002 - the pool's interface
        return Lease(model, self._instance, lambda: None)


async def _describe(_model: CatalogueModel) -> model_pb2.Model:
    return model_pb2.Model()


async def _serve(server: grpc.aio.Server, address: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await stopped.wait()
    await server.stop(None)


async def load(address: str, scenario: str, *arguments: str) -> None:
    """Call `address` as the scenario says and print what was seen as JSON."""
    scenarios: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {
        "capacity": _load_capacity,
        "paced": _load_paced,
        "first": _load_first,
    }
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await _stream(channel, 10, 0)
        print(json.dumps(await scenarios[scenario](channel, *arguments)))


async def _load_capacity(channel: grpc.aio.Channel, method: str, count: str) -> dict[str, float]:
    run = _stream if method == STREAM else _echo
    started_s = time.perf_counter()
    latencies = await asyncio.gather(*(run(channel, int(count), 0) for _ in range(STREAMS)))
    elapsed_s = time.perf_counter() - started_s
    return {"messages": sum(len(one) for one in latencies), "elapsed_s": elapsed_s}


async def _load_paced(channel: grpc.aio.Channel, seconds: str) -> dict[str, float]:
    count = round(float(seconds) * PACED_PER_S)
    streams = []
    for _ in range(PACED_STREAMS):
        streams.append(asyncio.create_task(_stream(channel, count, round(1e6 / PACED_PER_S))))
        await asyncio.sleep(1 / PACED_PER_S / PACED_STREAMS)  # so that the streams do not tick together
    latencies = [one for stream in await asyncio.gather(*streams) for one in stream[10:]]
    return _quantiles(latencies)


async def _load_first(channel: grpc.aio.Channel, count: str) -> dict[str, float]:
    times: list[float] = []
    for _ in range(int(count)):
        started_s = time.perf_counter()
        call = channel.unary_stream(STREAM)(_request(1, 0), timeout=LOAD_LIMIT_S)
        await anext(aiter(call))
        times.append(time.perf_counter() - started_s)
        async for _ in call:
            pass
    return _quantiles(times[10:])


async def _stream(channel: grpc.aio.Channel, count: int, interval_us: int) -> list[float]:
    """Take one stream; return how long each message was on its way, in seconds."""
    call = channel.unary_stream(STREAM)(_request(count, interval_us), timeout=LOAD_LIMIT_S)
    return [(time.monotonic_ns() - int.from_bytes(message[:8], "big")) / 1e9 async for message in call]


async def _echo(channel: grpc.aio.Channel, count: int, _interval_us: int) -> list[float]:
    """Have messages sent back, as fast as they go; return a number for each."""
    message = b"x" * MESSAGE_BYTES

    async def sent() -> AsyncIterator[bytes]:
        yield _request(0, 0)
        for _ in range(count - 1):
            yield message

    return [0.0 async for _ in channel.stream_stream(ECHO)(sent(), timeout=LOAD_LIMIT_S)]


def _request(count: int, interval_us: int) -> bytes:
    spec = generation_pb2.GenerationSpec(prompt=json.dumps({"count": count, "interval_us": interval_us}))
    return generation_pb2.GenerateRequest(model=MODEL, spec=spec).SerializeToString()


def _quantiles(times_s: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times_s, n=100)
    return {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


def _run(part: Coroutine[Any, Any, None]) -> None:
    """Run a part on uvloop where it is installed, as the product does."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(part)


if __name__ == "__main__":
    main()
