"""What the settings say of metrics."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.sections.section import Section


class MetricsSettings(Section):
    """Where Prometheus may read the metrics."""

    listen: Annotated[
        str,
        Field(
            description="`HOST:PORT` of the page /metrics, plain HTTP without tokens; port 0 picks one. Empty: there is"
            " none. Default: empty."
        ),
    ] = ""
    allow_remote: Annotated[
        bool,
        Field(
            description="Whether `listen` may be an address that other machines reach; names of models and how they are"
            " used can then be read by whoever reaches it. Default: false."
        ),
    ] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.listen and not self.allow_remote and not _is_loopback(self.host):
            raise ValueError(f"listen: {self.host} can be reached from other machines, which needs allow_remote = true")
        return self

    @property
    def host(self) -> str:
        """The host to listen at."""
        return _parts(self.listen)[0]

    @property
    def port(self) -> int:
        """The port to listen at, 0 for a free one."""
        return _parts(self.listen)[1]


def _parts(address: str) -> tuple[str, int]:
    host, found, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not found or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"listen: {address!r} is not HOST:PORT")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
