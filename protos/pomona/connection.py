"""The channel to a server: its certificate, the caller's token, the retry policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import grpc

MAX_MESSAGE_BYTES = 64 * 2**20
TIMEOUT_S = 600.0
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_RECONNECT_MS = 1000

Pem = str | Path | bytes


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a server; makes no connection by itself.

    Attributes:
        address: `HOST:PORT` or `unix:PATH`.
        tls_ca: certificates to trust, a PEM file or its bytes; True: those of the system; None: no TLS.
        tls_cert: the client's own certificate and its key, where the server asks for one (mutual TLS).
        token: goes with every call.
        timeout_s: the deadline of a call that gives none, in seconds.
        service_config: JSON of gRPC's service config; None: the retry policy that this project recommends.
    """

    address: str
    tls_ca: Pem | bool | None = None
    tls_cert: tuple[Pem, Pem] | None = None
    token: str | None = None
    timeout_s: float = TIMEOUT_S
    service_config: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: a token would go in the clear over a network, or the timeout is not above 0.
        """
        if self.token and not self.uses_tls and not self._is_local:
            raise ValueError("a token would go over the network in the clear: give tls_ca")
        if not self.timeout_s > 0:
            raise ValueError("timeout_s must be above 0: every call has a deadline")

    @property
    def uses_tls(self) -> bool:
        """Whether the channel is encrypted."""
        return bool(self.tls_ca) or self.tls_cert is not None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def options(self) -> Sequence[tuple[str, str | int]]:
        """Return the channel's arguments."""
        told: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.enable_retries", 1),
            ("grpc.service_config", self.service_config or recommended_service_config()),
        ]
        if self._is_local:
            told.append(("grpc.enable_http_proxy", 0))
        if self.address.startswith("unix:"):
            # A path is no valid name of a host, which some peers check.
            told.append(("grpc.default_authority", "localhost"))
        return told

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return what TLS needs, or None without TLS.

        Raises:
            OSError: a PEM file cannot be read.
        """
        if not self.uses_tls:
            return None
        certificate, key = self.tls_cert or (None, None)
        roots = None if isinstance(self.tls_ca, bool) else self.tls_ca
        return grpc.ssl_channel_credentials(_pem(roots), _pem(key), _pem(certificate))

    @property
    def _is_local(self) -> bool:
        return self.address.startswith("unix:") or self.address.rpartition(":")[0] in _LOOPBACK_HOSTS


def recommended_service_config() -> str:
    """Return the retry policy: UNAVAILABLE alone, at most four attempts, as the server's push-back says."""
    return files("pomona").joinpath("service_config.json").read_text()


def _pem(source: Pem | None) -> bytes | None:
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
