"""A rolling restart of two gateways under load: no stream that begins is dropped, and no request fails.

Clients open short streams, unary calls and long two-way streams, one after the other, over one channel that balances
by itself, and again through Envoy with `deploy/envoy.yaml`, where it is installed. Meanwhile the gateways are ended and
started again in turn. The same without notice and grace, and with SIGKILL in the place of SIGTERM, must drop streams:
a harness that does not see those sees nothing. Workers are scripted. Exits with 1 where one of this does not hold.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from pomona.v1 import generation_pb2, transcription_pb2

from bench import report
from tests.support.gateway_pair import ENVOY, LIMIT_S, RECONNECTION, Pair, Replica, envoy, gateway_pair, service_config
from tests.support.kill_rounds import MODEL
from tests.support.scripted import GENERATE, STREAM_GENERATE

STREAM_TRANSCRIBE = "/pomona.v1.TranscriptionService/StreamTranscribe"
BEGUN = {"metadata": {"x-pomona-begun": "1"}}
PAYLOAD = generation_pb2.StreamGenerateResponse(started=generation_pb2.GenerationStarted(prompt_tokens=3))
SHORT_MESSAGES, LONG_MESSAGES, INTERVAL_S = 8, 60, 0.05
REQUEST = generation_pb2.StreamGenerateRequest(model=MODEL).SerializeToString()
AUDIO_REQUEST = transcription_pb2.StreamTranscribeRequest(model=MODEL).SerializeToString()


def methods(long_messages: int) -> dict[str, Any]:
    """Return what the workers' script says of each method; a long stream has so many messages."""
    return {
        STREAM_GENERATE: [
            {"read": 1},
            BEGUN,
            {"send": PAYLOAD.SerializeToString().hex(), "count": SHORT_MESSAGES, "interval_s": INTERVAL_S},
        ],
        GENERATE: [{"read": 1}, BEGUN, {"wait_s": 0.2}, {"send": "", "count": 1}],
        STREAM_TRANSCRIBE: [{"read": 1}, BEGUN, {"send": "", "count": long_messages, "interval_s": INTERVAL_S}],
    }


@dataclass(frozen=True)
class Round:
    """One way to restart.

    Attributes:
        name: what is printed.
        limits: of the gateways' settings.
        number: the signal that ends one.
        has_health_checks: whether the client looks at health.
        through_envoy: whether the client leaves the balancing to Envoy.
        is_clean: whether nothing may be dropped; False: something must be; None: what is dropped is only told.
    """

    name: str
    limits: Mapping[str, float]
    number: signal.Signals = signal.SIGTERM
    has_health_checks: bool = True
    through_envoy: bool = False
    is_clean: bool | None = True


@dataclass
class Tally:
    """How requests ended: whole ones by kind, others by what went wrong, and the longest wait for an answer's begin."""

    whole: Counter[str] = field(default_factory=Counter[str])
    broken: Counter[str] = field(default_factory=Counter[str])
    longest_first_s: float = 0.0
    exit_codes: list[int] = field(default_factory=list[int])

    def holds(self, is_clean: bool | None) -> bool:
        """Say whether the tally is as it should be; one without requests never is."""
        return bool(self.whole) and is_clean in (None, not self.broken)


def rounds(notice_s: float, grace_s: float) -> list[Round]:
    """Return the rounds of the whole measurement."""
    leave = {"drain_notice_s": notice_s, "drain_grace_s": grace_s}
    abrupt = {"drain_notice_s": 0.0, "drain_grace_s": 0.0}
    made = [
        Round("SIGTERM, a client that balances and looks at health", leave),
        Round("SIGTERM, through Envoy", leave, through_envoy=True),
        Round("SIGTERM, a client that does not look at health", leave, has_health_checks=False, is_clean=None),
        Round("switched off: SIGTERM without notice and grace", abrupt, is_clean=False),
        Round("seeded defect: SIGKILL", leave, number=signal.SIGKILL, is_clean=False),
    ]
    return [one for one in made if ENVOY is not None or not one.through_envoy]


async def play(one: Round, restarts: int, clients: int, long_messages: int = LONG_MESSAGES) -> Tally:
    """Restart gateways in turn under load and return how the requests ended."""
    tally, over = Tally(), asyncio.Event()
    half_s = long_messages * INTERVAL_S / 2

    def midway(replica: Replica) -> bool:
        """A long stream has messages already, and has some to come."""
        return replica.is_midway(STREAM_TRANSCRIBE, half_s / 2, half_s)

    lengths = {"short": SHORT_MESSAGES, "long": long_messages, "unary": 1}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pair = stack.enter_context(gateway_pair(folder, methods(long_messages), one.limits))
        await pair.start()
        target = pair.target
        if one.through_envoy:
            target = stack.enter_context(envoy(folder, *(replica.port for replica in pair.replicas)))
        async with _channel(target, one) as channel:
            await asyncio.wait_for(channel.channel_ready(), LIMIT_S)
            kinds = [*lengths.items()] * clients
            load = [asyncio.create_task(_client(*kind, channel, over, tally)) for kind in kinds[:clients]]
            try:
                for replica in pair.replicas:
                    await replica.until_used(0)
                for number in range(restarts):
                    tally.exit_codes.append(await pair.restart(number % 2, one.number, midway))
            finally:
                over.set()
                await asyncio.wait_for(asyncio.gather(*load), LIMIT_S)
                await _close(pair)
    return tally


async def _close(pair: Pair) -> None:
    for replica in pair.replicas:
        await asyncio.to_thread(replica.close)


@contextlib.asynccontextmanager
async def _channel(target: str, one: Round) -> AsyncGenerator[grpc.aio.Channel]:
    options = (
        ("grpc.service_config", service_config(health_checks=one.has_health_checks and not one.through_envoy)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.default_authority", "localhost"),
        *RECONNECTION,
    )
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield channel


async def _client(kind: str, expected: int, channel: grpc.aio.Channel, over: asyncio.Event, tally: Tally) -> None:
    """Make one request after the other until it is over; each answer has so many messages."""
    while not over.is_set():
        began_s, count = time.monotonic(), 0
        try:
            async for _ in CALLS[kind](channel):
                if not count:
                    tally.longest_first_s = max(tally.longest_first_s, time.monotonic() - began_s)
                count += 1
            if count == expected:
                tally.whole[kind] += 1
            else:
                tally.broken[f"{kind}: {count} messages"] += 1
        except grpc.aio.AioRpcError as error:
            tally.broken[f"{kind}: {error.code().name} {_reason(error)}"] += 1
            await asyncio.sleep(INTERVAL_S)


def _short(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(STREAM_GENERATE)(REQUEST, timeout=LIMIT_S)


def _long(channel: grpc.aio.Channel) -> Any:
    async def audio() -> AsyncIterator[bytes]:
        yield AUDIO_REQUEST

    return channel.stream_stream(STREAM_TRANSCRIBE)(audio(), timeout=LIMIT_S)


async def _unary(channel: grpc.aio.Channel) -> AsyncIterator[bytes]:
    yield await channel.unary_unary(GENERATE)(REQUEST, timeout=LIMIT_S)


CALLS: Mapping[str, Any] = {"short": _short, "long": _long, "unary": _unary}


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return the reason that a status gives, or what gRPC itself says."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            info = error_details_pb2.ErrorInfo()
            if any(detail.Unpack(info) for detail in status_pb2.Status.FromString(value).details):
                return info.reason
    return f"({(error.details() or '')[:60]})"


def main() -> None:
    """Play every round, print the tallies and write `bench/results/rolling.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("A rolling restart of two gateways under load"))
    if ENVOY is None:
        print("Envoy is not installed: its round is left out")
    results: list[dict[str, Any]] = []
    for one in rounds(arguments.notice, arguments.grace):
        tally = asyncio.run(play(one, arguments.restarts, arguments.clients))
        holds = tally.holds(one.is_clean)
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {one.name}", flush=True)
        print(f"    whole {sum(tally.whole.values())} {dict(tally.whole)}, broken {dict(tally.broken)}")
        print(f"    longest wait for a first message {tally.longest_first_s:.2f} s, exit codes {set(tally.exit_codes)}")
        results.append(
            {
                "round": one.name,
                "is_clean": one.is_clean,
                "holds": holds,
                "whole": dict(tally.whole),
                "broken": dict(tally.broken),
                "longest_first_s": tally.longest_first_s,
                "exit_codes": tally.exit_codes,
            }
        )
    if not arguments.dry_run:
        path = report.write("rolling", {"options": vars(arguments), "rounds": results})
        print("written:", path.relative_to(report.ROOT))
    if not all(result["holds"] for result in results):
        sys.exit("a round does not hold")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=10, help="in turn, of both gateways together")
    parser.add_argument("--clients", type=int, default=24, help="at once")
    parser.add_argument("--notice", type=float, default=3.0, help="drain_notice_s; Envoy looks every 2 s")
    parser.add_argument("--grace", type=float, default=20.0, help="drain_grace_s")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
