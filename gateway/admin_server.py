"""The socket of whoever runs the server: the gateway's own services, health, reflection and channelz, without tokens.

It is a Unix socket with mode 0600, so the system lets nobody else connect. Requests to models do not go over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_channelz.v1 import channelz
from structlog.typing import FilteringBoundLogger

from gateway.address import ListenError, UnixAddress, parse_address
from gateway.reflection import add_reflection
from gateway.services.registration import add_service

CHANNELZ = "grpc.channelz.v1.Channelz"
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 64), ("grpc.max_metadata_size", 16 * 1024))


class Served(NamedTuple):
    """A service of the gateway's own: its descriptor, its methods, and whether they take the caller's time."""

    service: ServiceDescriptor
    methods: object
    is_timed: bool = False


class AdminServer:
    """Listens beside the gateway. Lives on its event loop."""

    def __init__(self, listen: str, services: Iterable[Served], log: FilteringBoundLogger) -> None:
        """Offer `services` at `listen`, `unix:PATH`; nothing listens yet.

        Raises:
            ListenError: it is not a Unix socket.
        """
        address = parse_address(listen)
        if not isinstance(address, UnixAddress):
            raise ListenError(f"admin_listen: {listen!r} is not unix:PATH")
        self._address = address
        self._log = log
        self._is_bound = False
        self._server = grpc.aio.server(options=OPTIONS)
        offered = tuple(services)
        for one in offered:
            add_service(self._server, one.service, one.methods, log, is_timed=one.is_timed)
        library: Any = channelz
        library.add_channelz_servicer(self._server)
        add_reflection(self._server, (*(one.service.full_name for one in offered), CHANNELZ), log)

    async def start(self) -> str:
        """Listen and return the address.

        Raises:
            ListenError: the path is taken or not allowed.
        """
        address = self._address.bind(self._server)
        self._is_bound = True
        await self._server.start()
        self._log.info("admin socket listens", address=address)
        return address

    async def stop(self) -> None:
        """End what runs there and leave no socket behind."""
        await self._server.stop(None)
        if self._is_bound:
            self._address.release()
