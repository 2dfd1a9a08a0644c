"""Connections that break, speak nonsense or are too many: their requests end, and the gateway serves the others."""

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import model_pb2, server_pb2, server_pb2_grpc

from tests.support.fault_rounds import LIMITS, SERVING, Stage
from tests.support.kill_rounds import LIMIT_S, MODEL, GatewayProcess, gateway_process
from tests.support.scripted import events_in, write_script
from tests.support.waiting import wait_until
from tests.support.wire_proxy import Proxy, raw_connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes(9 - 6) + b"\x04" + bytes(5)
HEADERS_CUT = b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + b"\x82"  # says 16 KiB and brings one byte
NONSENSE = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a preface": PREFACE[:10],
    "headers that are cut": PREFACE + SETTINGS + HEADERS_CUT,
    "a frame that is too large": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "bytes": bytes(range(256)) * 64,
    "a greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
}
FEW_FILES = 6
FEW_CRASHES: dict[str, Any] = {**LIMITS, "crash_budget": 2}
MANY_CLIENTS = 40


@dataclass
class Running:
    """A gateway with a scripted worker that serves."""

    gateway: GatewayProcess
    stage: Stage

    def is_empty(self) -> bool:
        """Say whether no request is in flight."""
        admin = server_pb2_grpc.AdminServiceStub(self.stage.channel)
        return not admin.ListRequests(server_pb2.ListRequestsRequest(), timeout=LIMIT_S).requests

    def streaming(self, address: str) -> grpc.Channel:
        """Open a connection with a stream on it."""
        channel = grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        self.gateway.stream(channel)
        return channel


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("script")
    with gateway_process(write_script(folder, methods=SERVING), **LIMITS) as gateway, gateway.channel() as channel:
        stage = Stage(folder, gateway, channel)
        assert stage.ask() == ""
        yield Running(gateway, stage)


def test_a_connection_that_is_reset_ends_its_requests_at_once(running: Running) -> None:
    before = len(events_in(running.stage.folder, "cancelled"))
    with Proxy(running.gateway.address) as proxy, running.streaming(proxy.address):
        proxy.reset()
        wait_until(running.is_empty, LIMIT_S)
        wait_until(lambda: len(events_in(running.stage.folder, "cancelled")) == before + 1, LIMIT_S)
    assert running.stage.ask() == ""


def test_a_connection_that_is_closed_by_half_ends_its_requests(running: Running) -> None:
    with Proxy(running.gateway.address) as proxy, running.streaming(proxy.address):
        proxy.half_close()
        wait_until(running.is_empty, LIMIT_S)
    assert running.stage.ask() == ""


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_on_a_connection_harms_nobody_else(running: Running, name: str) -> None:
    call = running.gateway.stream(running.stage.channel)
    with raw_connection(running.gateway.address) as connection, contextlib.suppress(OSError):
        connection.sendall(NONSENSE[name])
    assert next(call)
    call.cancel()
    assert running.stage.ask() == ""
    assert running.gateway.process.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process can be set on Linux only")
def test_a_gateway_without_a_descriptor_left_refuses_and_recovers(tmp_path: Path) -> None:
    with (
        gateway_process(write_script(tmp_path, methods=SERVING), **FEW_CRASHES) as gateway,
        gateway.channel() as channel,
        contextlib.ExitStack() as clients,
    ):
        stage = Stage(tmp_path, gateway, channel)
        running = Running(gateway, stage)
        assert running.is_empty()
        pid = gateway.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + FEW_FILES, limits[1]))
        for _ in range(MANY_CLIENTS):
            clients.enter_context(raw_connection(gateway.address))
        assert stage.ask() == "MODEL_FAILED"
        assert running.is_empty()
        clients.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        stage.models.LoadModel(model_pb2.LoadModelRequest(model=MODEL), timeout=LIMIT_S)
        assert stage.ask() == ""
        assert gateway.process.poll() is None
