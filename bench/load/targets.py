"""How each kind of server is asked for a stream, with as little code between socket and clock as will do."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import grpc
import grpc.aio
from pomona.v1 import generation_pb2 as pb

from bench.load.plan import Job

STREAM_GENERATE = "/pomona.v1.GenerationService/StreamGenerate"
# Of a part of an answer: its tokens; of a report that a chunk of the prompt is done: PROGRESS.
PROGRESS = -1
MAX_LINE_BYTES = 1 << 22


class RefusedError(Exception):
    """Raised when a server gives no stream; the text is its status."""


class Target(Protocol):
    """A server, or one way to call it.

    Attributes:
        counts_tokens: it says how many tokens each part has; else a part counts as one, and those that never showed
            as the last one's.
    """

    counts_tokens: bool

    def stream(self, job: Job, *, with_progress: bool) -> AsyncGenerator[int]:
        """Ask for a generation and give the number of tokens of each part as it comes."""
        ...


@asynccontextmanager
async def make(facts: Mapping[str, Any]) -> AsyncGenerator[Target]:
    """Connect to a server.

    Args:
        facts: `kind` (`grpc`, `llama` or `mlx`), `address` (`HOST:PORT`), and `model` for gRPC.
    """
    if facts["kind"] != "grpc":
        yield EventStreamTarget(facts["kind"], facts["address"])
        return
    async with grpc.aio.insecure_channel(facts["address"]) as channel:
        yield GrpcTarget(channel, facts["model"])


class GrpcTarget:
    """Pomona's StreamGenerate."""

    counts_tokens = True

    def __init__(self, channel: grpc.aio.Channel, model: str) -> None:
        self._model = model
        self._send: Any = channel.unary_stream(
            STREAM_GENERATE, response_deserializer=pb.StreamGenerateResponse.FromString
        )

    async def stream(self, job: Job, *, with_progress: bool) -> AsyncGenerator[int]:
        """Give the tokens of each delta, and PROGRESS for each chunk where wanted."""
        call = self._send(self._request(job, with_progress))
        try:
            async for event in call:
                kind = event.WhichOneof("event")
                if kind == "delta":
                    yield event.delta.token_count
                elif kind == "prefill_progress":
                    yield PROGRESS
        except grpc.aio.AioRpcError as error:
            raise RefusedError(f"{error.code().name}: {error.details()}") from error
        finally:
            call.cancel()

    def _request(self, job: Job, with_progress: bool) -> bytes:
        spec = pb.GenerationSpec(
            prompt=job.prompt,
            sampling=pb.SamplingParams(temperature=0.0),
            stopping=pb.StoppingParams(max_tokens=job.num_tokens, ignore_eos=True),
        )
        options = pb.StreamOptions(prefill_progress=with_progress)
        return pb.StreamGenerateRequest(model=self._model, spec=spec, stream_options=options).SerializeToString()


class EventStreamTarget:
    """A server that sends server-sent events over HTTP, each with one token: llama.cpp's, or mlx-lm's."""

    counts_tokens = False

    def __init__(self, kind: Literal["llama", "mlx"], address: str) -> None:
        self._kind = kind
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def stream(self, job: Job, *, with_progress: bool) -> AsyncGenerator[int]:  # noqa: ARG002 (has no such report)
        """Give 1 for each event before the one that says that all was sent."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=MAX_LINE_BYTES)
        try:
            writer.write(self._request(job))
            await _status(reader)
            async for event in _events(reader):
                if self._is_end(event):
                    break
                yield 1
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _request(self, job: Job) -> bytes:
        path, body = ("/completion", _llama_body(job)) if self._kind == "llama" else ("/v1/completions", _mlx_body(job))
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return head.encode() + f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content

    def _is_end(self, event: bytes) -> bool:
        """Tell whether an event says that all text was sent."""
        if self._kind == "llama":
            return b'"stop":true' in event
        return event == b"[DONE]" or b'"finish_reason": "length"' in event


def _llama_body(job: Job) -> dict[str, Any]:
    return {
        "prompt": job.prompt,
        "n_predict": job.num_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "cache_prompt": True,
    }


def _mlx_body(job: Job) -> dict[str, Any]:
    return {"prompt": job.prompt, "max_tokens": job.num_tokens, "temperature": 0, "stream": True}


async def _status(reader: asyncio.StreamReader) -> None:
    """Read the head of an answer.

    Raises:
        RefusedError: it is not 200.
    """
    line = await reader.readline()
    if b" 200" not in line:
        raise RefusedError(line.decode(errors="replace").strip() or "the connection was closed")
    while (await reader.readline()).strip():
        pass


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Give the data of each event; the sizes of HTTP's chunks are lines of their own and are passed over."""
    while line := await reader.readline():
        if line.startswith(b"data: "):
            yield line[6:].strip()
