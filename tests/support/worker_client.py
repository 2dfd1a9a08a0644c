"""Calls to a worker's socket as the gateway makes them, and what its refusals say."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from pomona.v1 import common_pb2, model_pb2, worker_pb2, worker_pb2_grpc
from pomona.v1 import generation_pb2 as pb

from tests.support.worker_process import MODEL, START_TIMEOUT_S, WorkerProcess

RPC_TIMEOUT_S = 30.0
KINDS: dict[type[Any], tuple[str, type[Any]]] = {
    pb.GenerateRequest: ("Generate", pb.GenerateResponse),
    pb.StreamGenerateRequest: ("StreamGenerate", pb.StreamGenerateResponse),
    pb.CountTokensRequest: ("CountTokens", pb.CountTokensResponse),
}


@dataclass(frozen=True)
class Refusal:
    """What a failed call says."""

    code: grpc.StatusCode
    message: str
    reason: str
    field: str
    metadata: dict[str, str]
    usage: common_pb2.Usage | None


@asynccontextmanager
async def client_of(worker: WorkerProcess) -> AsyncGenerator["WorkerClient"]:
    """Connect to a worker that listens."""
    await worker.appears()
    channel = worker.channel()
    try:
        yield WorkerClient(worker, channel)
    finally:
        await channel.close()


class WorkerClient:
    """One connection to a worker.

    Attributes:
        gateway: stub of the gateway's own service.
    """

    def __init__(self, worker: WorkerProcess, channel: grpc.aio.Channel) -> None:
        self.worker = worker
        self.channel = channel
        self.gateway: Any = worker_pb2_grpc.WorkerServiceStub(channel)

    async def becomes(self, state: int) -> worker_pb2.WatchWorkerResponse:
        """Wait until the worker reports `state` and return that report."""
        call = self.gateway.WatchWorker(
            worker_pb2.WatchWorkerRequest(),
            metadata=self.worker.metadata(),
            timeout=START_TIMEOUT_S,
            wait_for_ready=True,
        )
        try:
            async for report in call:
                if report.state == state:
                    return report
        finally:
            call.cancel()
        raise AssertionError("the watch ended")

    async def is_active(self) -> worker_pb2.WatchWorkerResponse:
        """Wait until the model answers."""
        return await self.becomes(model_pb2.MODEL_STATE_ACTIVE)

    async def ask(self, request: Any) -> Any:
        """Send a unary request, stamped as the gateway would, and return the answer."""
        call = self.call(type(request), request.SerializeToString(), stamps(request))
        try:
            return await call
        finally:
            call.cancel()

    async def stream(self, request: pb.StreamGenerateRequest) -> list[pb.StreamGenerateResponse]:
        """Send a request and return all its events."""
        call = self.call(type(request), request.SerializeToString(), stamps(request))
        try:
            return [event async for event in call]
        finally:
            call.cancel()

    def call(
        self, kind: type[Any], body: bytes, stamped: Mapping[str, str], timeout: float | None = RPC_TIMEOUT_S
    ) -> Any:
        """Send raw bytes to the method that takes `kind`."""
        method, answer = KINDS[kind]
        path = f"/pomona.v1.GenerationService/{method}"
        make = self.channel.unary_stream if kind is pb.StreamGenerateRequest else self.channel.unary_unary
        send: Any = make(path, request_serializer=None, response_deserializer=answer.FromString)
        return send(body, metadata=self.worker.metadata(stamped), timeout=timeout)

    async def refused(self, request: Any) -> Refusal:
        """Send a request that must fail, and return how."""
        return await self.refused_body(type(request), request.SerializeToString(), stamps(request))

    async def refused_body(self, kind: type[Any], body: bytes, stamped: Mapping[str, str]) -> Refusal:
        """Send a body that must fail, and return how."""
        call = self.call(kind, body, stamped)
        try:
            streams = kind is pb.StreamGenerateRequest
            answers = [event async for event in call] if streams else [await call]
        except grpc.aio.AioRpcError as error:
            return refusal_of(error)
        finally:
            call.cancel()
        raise AssertionError(f"not refused: {answers}")


def request(kind: type[Any] = pb.GenerateRequest, request_id: str = "r1", **fields: Any) -> Any:
    """Return a request with its envelope; a generation asks for 4 greedy tokens after "ab" unless told otherwise."""
    message = kind(model=MODEL, request_id=request_id, **fields)
    if kind is pb.CountTokensRequest:
        return message
    spec = message.spec
    if spec.WhichOneof("input") is None:
        spec.prompt = "ab"
    if not spec.stopping.HasField("max_tokens"):
        spec.stopping.max_tokens = 4
    if not spec.sampling.HasField("temperature"):
        spec.sampling.temperature = 0
    return message


def chat(*texts: str, **fields: Any) -> pb.ChatInput:
    """Return a chat whose messages are the user's."""
    return pb.ChatInput(messages=[pb.ChatMessage(role=pb.ROLE_USER, text=text) for text in texts], **fields)


def stamps(message: Any) -> dict[str, str]:
    """Return what the gateway would have read in a request."""
    return {"model": message.model, "request_id": message.request_id, "priority": str(message.priority)}


async def rest_of(call: Any) -> list[Any]:
    """Read a stream, of which some was read, to its end."""
    end: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
    messages: list[Any] = []
    while (message := await call.read()) is not end:
        messages.append(message)
    return messages


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Take the details out of a failed call."""
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = Status.FromString(trailers.get("grpc-status-details-bin", b""))
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    usage = trailers.get("pomona-usage-bin")
    return Refusal(
        code=error.code(),
        message=error.details() or "",
        reason=info.reason,
        field=bad.field_violations[0].field if bad.field_violations else "",
        metadata=dict(info.metadata),
        usage=None if usage is None else common_pb2.Usage.FromString(usage),
    )
