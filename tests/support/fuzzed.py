"""Sends bodies to every RPC of a server and says what is wrong with how they end."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from pomona.v1 import embedding_pb2, generation_pb2, model_pb2, server_pb2, transcription_pb2, worker_pb2

TABLE = Path(__file__).parents[2] / "docs" / "errors.md"
FILES: tuple[Any, ...] = (generation_pb2, embedding_pb2, transcription_pb2, model_pb2, server_pb2)
OTHERS: tuple[Any, ...] = (health_pb2, reflection_pb2)
PRIVATE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"]
# Statuses that carry no reason of ours: the client's own, the library's, and those of the health protocol.
BARE = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"})
DEADLINE_S = 5.0
WATCH_S = 0.05
MAX_ANSWERS = 3


@dataclass(frozen=True)
class Target:
    """One method: its path, the message that it takes, and which side streams."""

    path: str
    kind: Descriptor
    request_streams: bool
    response_streams: bool

    @property
    def name(self) -> str:
        """The method's own name."""
        return self.path.rpartition("/")[2]


def targets() -> dict[str, Target]:
    """Return every method that a client could call, by service and name, those of the private service too."""
    services = [service for file in (*FILES, *OTHERS) for service in file.DESCRIPTOR.services_by_name.values()]
    return {
        f"{service.name}.{method.name}": _target(method)
        for service in (*services, PRIVATE)
        for method in service.methods
    }


def _target(method: MethodDescriptor) -> Target:
    path = f"/{method.containing_service.full_name}/{method.name}"
    return Target(path, method.input_type, method.client_streaming, method.server_streaming)


def listed() -> frozenset[tuple[str, str]]:
    """Return each status with its reason that the table for people has."""
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+) \|", TABLE.read_text(), re.MULTILINE)
    return frozenset((code, reason) for reason, code in rows)


LISTED = listed()


@dataclass(frozen=True)
class End:
    """How a call ended: OK, a reason or a code; and what is wrong with that, if anything."""

    outcome: str
    wrong: str = ""


def send(channel: grpc.Channel, target: Target, bodies: Sequence[bytes]) -> End:
    """Send bodies to a method, only the first where it takes one."""
    limit_s = WATCH_S if target.name.startswith("Watch") or target.name == "StreamLogs" else DEADLINE_S
    try:
        _call(channel, target, bodies, limit_s)
    except grpc.RpcError as error:
        return end_of(error, is_late=limit_s == WATCH_S)
    return End("OK")


def _call(channel: grpc.Channel, target: Target, bodies: Sequence[bytes], limit_s: float) -> None:
    if target.request_streams:
        call: Any = channel.stream_stream(target.path)(iter(bodies), timeout=limit_s)
    else:
        call = channel.unary_stream(target.path)(bodies[0], timeout=limit_s)
    for _ in zip(range(MAX_ANSWERS), call, strict=False):
        pass
    if target.response_streams:
        call.cancel()


def end_of(error: Any, *, is_late: bool = False) -> End:
    """Return what a status says, and what is wrong with it; `is_late`: the deadline is expected to pass."""
    code: str = error.code().name
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = next(_infos(details), None)
    if info is None:
        is_bare = code in BARE and (code != "DEADLINE_EXCEEDED" or is_late)
        return End(code, "" if is_bare else f"{code} without a reason: {error.details()}")
    is_listed = (code, info.reason) in LISTED and info.domain == "pomona" and code not in {"INTERNAL", "UNKNOWN"}
    return End(info.reason, "" if is_listed else f"{code} {info.reason} of {info.domain}: {error.details()}")


def _infos(details: bytes) -> Iterator[error_details_pb2.ErrorInfo]:
    for packed in status_pb2.Status.FromString(details).details:
        info = error_details_pb2.ErrorInfo()
        if packed.Unpack(info):
            yield info
