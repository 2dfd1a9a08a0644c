"""The server that a verb talks to: its address, its certificate, the caller's token, and the stubs."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2_grpc
from pomona.v1 import embedding_pb2_grpc, generation_pb2_grpc, model_pb2_grpc, server_pb2_grpc, transcription_pb2_grpc

from gateway.cli.failures import UsageError, failure_of

DEFAULT_ADDRESS = "127.0.0.1:50051"
# A question about the server's state is answered from memory; one that takes longer will not be answered.
QUERY_TIMEOUT_S = 15.0
MAX_MESSAGE_BYTES = 64 * 2**20
PEM_MARK = b"-----BEGIN CERTIFICATE-----"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_PANEL = "Connection"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options that every client verb takes."""

    server: Annotated[
        str,
        typer.Option(envvar="POMONA_SERVER", metavar="ADDRESS", help="HOST:PORT or unix:PATH.", rich_help_panel=_PANEL),
    ] = DEFAULT_ADDRESS
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use TLS, and trust the certificates in this PEM file. POMONA_CA does the same, but for unix:PATH.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    tls_client_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Show this certificate, PEM, to a server that wants one.", rich_help_panel=_PANEL
        ),
    ] = None
    tls_client_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key, PEM, not encrypted.", rich_help_panel=_PANEL)
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Send the token in this file. POMONA_TOKEN holds the token itself.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    token: Annotated[str | None, typer.Option(envvar="POMONA_TOKEN", hidden=True)] = None
    usual_ca: Annotated[Path | None, typer.Option(envvar="POMONA_CA", hidden=True)] = None
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Give up after so long.", rich_help_panel=_PANEL),
    ] = None

    @property
    def trusted(self) -> Path | None:
        """The certificates to trust; None: no TLS. What is set for all commands is not meant for sockets of files."""
        return self.tls_ca or (None if self.server.startswith("unix:") else self.usual_ca)


def names_server(context: typer.Context) -> bool:
    """Tell whether a server was named, by --server or POMONA_SERVER."""
    source = context.get_parameter_source("server")
    return source is not None and source.name in {"COMMANDLINE", "ENVIRONMENT"}


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel with its stubs; `metadata` goes with every call."""

    address: str
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float | None
    models: model_pb2_grpc.ModelServiceStub
    adapters: model_pb2_grpc.AdapterServiceStub
    generation: generation_pb2_grpc.GenerationServiceStub
    embedding: embedding_pb2_grpc.EmbeddingServiceStub
    transcription: transcription_pb2_grpc.TranscriptionServiceStub
    server: server_pb2_grpc.ServerServiceStub
    admin: server_pb2_grpc.AdminServiceStub
    health: Any  # its stub has no types

    @property
    def query_timeout_s(self) -> float:
        """The limit of a question that is answered from memory, in seconds."""
        return QUERY_TIMEOUT_S if self.timeout_s is None else self.timeout_s


@contextmanager
def connect(options: ServerOptions) -> Generator[Connection]:
    """Open a channel for the length of the block.

    Raises:
        UsageError: the address, the certificate file or the token cannot be used.
        ServerError: a call within the block failed.
    """
    channel = _channel(options)
    try:
        yield Connection(
            address=options.server,
            metadata=_metadata(options),
            timeout_s=options.timeout,
            models=model_pb2_grpc.ModelServiceStub(channel),
            adapters=model_pb2_grpc.AdapterServiceStub(channel),
            generation=generation_pb2_grpc.GenerationServiceStub(channel),
            embedding=embedding_pb2_grpc.EmbeddingServiceStub(channel),
            transcription=transcription_pb2_grpc.TranscriptionServiceStub(channel),
            server=server_pb2_grpc.ServerServiceStub(channel),
            admin=server_pb2_grpc.AdminServiceStub(channel),
            health=health_pb2_grpc.HealthStub(channel),
        )
    except grpc.RpcError as error:
        raise failure_of(error, options.server) from error
    finally:
        channel.close()


def _channel(options: ServerOptions) -> grpc.Channel:
    settings: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if _is_local(options.server):
        settings.append(("grpc.enable_http_proxy", 0))
    if options.server.startswith("unix:"):
        # A path is no valid name of a host, which some peers check.
        settings.append(("grpc.default_authority", "localhost"))
    _check_certificates(options)
    if options.trusted is None:
        return grpc.insecure_channel(options.server, options=settings)
    source = "--tls-ca" if options.tls_ca else "POMONA_CA"
    roots, chain, key = _read_certificate(options.trusted, source), None, None
    if options.tls_client_cert is not None and options.tls_client_key is not None:
        chain = _read_certificate(options.tls_client_cert, "--tls-client-cert")
        key = _read(options.tls_client_key, "--tls-client-key")
    return grpc.secure_channel(options.server, grpc.ssl_channel_credentials(roots, key, chain), options=settings)


def _check_certificates(options: ServerOptions) -> None:
    """Refuse half of what a client's certificate needs."""
    if (options.tls_client_cert is None) != (options.tls_client_key is None):
        raise UsageError("--tls-client-cert and --tls-client-key go together")
    if options.tls_client_cert is not None and options.trusted is None:
        raise UsageError("--tls-client-cert: a certificate is shown over TLS only: add --tls-ca FILE")


def _read_certificate(path: Path, option: str) -> bytes:
    content = _read(path, option)
    if PEM_MARK not in content:
        raise UsageError(f"{option}: {path} holds no certificate in PEM form")
    return content


def _is_local(address: str) -> bool:
    """Tell whether `address` is on this machine.

    Raises:
        UsageError: it is no address.
    """
    if address.startswith("unix:"):
        return True
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"--server: {address!r} is no address; give HOST:PORT or unix:PATH")
    return match["host"] in LOOPBACK_HOSTS


def _metadata(options: ServerOptions) -> tuple[tuple[str, str], ...]:
    token = options.token if options.token_file is None else _token(options.token_file)
    if not token:
        return ()
    if options.trusted is None and not _is_local(options.server):
        raise UsageError("a token is sent in the clear without TLS: add --tls-ca FILE")
    return (("authorization", f"Bearer {token}"),)


def _token(path: Path) -> str:
    text = _read(path, "--token-file").decode("ascii", "replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"--token-file: {path} does not hold one token")
    return text


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from error
