"""What a client of `pomona serve` gets: tokens a second of prompts, and of tokens one by one."""

import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from pomona.v1 import model_pb2, model_pb2_grpc

from bench.load import client, servers
from bench.load.plan import OK, Lane, Stream
from bench.load.prompts import prompts_of

WARMUP_PROMPT, WARMUP_DECODED = 16, 2
LIMIT_S = 120.0
RPC_LIMIT_S = 10.0
MIB = 1 << 20


class StreamFailedError(RuntimeError):
    """Raised when a stream has no token, or ended with something else than OK."""


def measure(checkpoint: Path, threads: int, prompts: Sequence[int], num_decoded: int) -> dict[str, float]:
    """Start a server, load the model and ask for text, over loopback and from a process of the client's own.

    Args:
        checkpoint: of the model.
        threads: that compute.
        prompts: their tokens; behind the first `num_decoded` tokens are decoded. Nothing is reused from a prompt
            before.
        num_decoded: tokens after the first.

    Returns:
        By prompt `prefill_<tokens>`, tokens a second until the first token is at the client; `decode`; `load_s`; and
        `peak_mib`, what the worker takes afterwards.
    """
    texts = prompts_of(checkpoint)
    sizes = [(WARMUP_PROMPT, WARMUP_DECODED), (prompts[0], num_decoded), *((size, 0) for size in prompts[1:])]
    jobs = tuple(texts.job(size, decoded + 1) for size, decoded in sizes)
    started = time.perf_counter()
    with servers.pomona(checkpoint, threads, 1, {"worker.prefix_cache_bytes": 0}) as target:
        figures = {"load_s": time.perf_counter() - started}
        _, first, *others = client.run([Lane("one", jobs)], LIMIT_S, target)
        for size, stream in zip(prompts, (first, *others), strict=True):
            figures[f"prefill_{size}"] = size / _first_s(stream)
        figures["decode"] = num_decoded / (first.events[-1][0] - first.events[0][0])
        with grpc.insecure_channel(target["address"]) as channel:
            request = model_pb2.GetModelRequest(model=servers.MODEL)
            found = model_pb2_grpc.ModelServiceStub(channel).GetModel(request, timeout=RPC_LIMIT_S)
        figures["peak_mib"] = found.model.memory.footprint_bytes / MIB
    return figures


def _first_s(stream: Stream) -> float:
    if stream.status != OK or stream.first_s is None:
        raise StreamFailedError(stream.status)
    return stream.first_s
