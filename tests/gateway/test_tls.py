"""Certificates: shown, asked for, and changed under a server."""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
import trustme

from gateway import tls
from gateway.tls import CertificateError, CertificateFiles, Certificates
from tests.gateway.statuses import seen

METHOD = "/test.Names/Names"
LIMIT_S = 10.0


def write_pair(folder: Path, authority: trustme.CA, *names: str) -> CertificateFiles:
    """Write a certificate of `authority` and its key."""
    made = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    folder.mkdir(exist_ok=True)
    files = CertificateFiles(folder / "server.pem", folder / "server.key")
    files.certificate.write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
    files.key.write_bytes(made.private_key_pem.bytes())
    return files


def root_of(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


class Server:
    """Tells each client the names in its certificate."""

    def __init__(self, files: CertificateFiles) -> None:
        self.capture = structlog.testing.LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.capture])
        self.certificates = Certificates(files, log)
        self.server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handler = grpc.unary_unary_rpc_method_handler(self._names)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Names", {"Names": handler}),))
        self.port = self.server.add_secure_port("127.0.0.1:0", self.certificates.credentials())

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.capture.entries]

    async def _names(self, _body: bytes, context: Any) -> bytes:
        return b",".join(context.auth_context().get("x509_subject_alternative_name", ()))

    async def ask(self, trusted: bytes, pair: tuple[bytes, bytes] | None = None) -> bytes:
        """Call it on a connection of its own."""
        key, chain = pair or (None, None)
        credentials = grpc.ssl_channel_credentials(trusted, key, chain)
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options) as channel:
            answer: bytes = await channel.unary_unary(METHOD)(b"", timeout=LIMIT_S)
        return answer


@contextlib.asynccontextmanager
async def serving(files: CertificateFiles) -> AsyncGenerator[Server]:
    server = Server(files)
    await server.server.start()
    try:
        yield server
    finally:
        await server.server.stop(None)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return seen(caught.value).code


async def test_a_client_that_trusts_the_authority_gets_through_and_no_other(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with serving(write_pair(tmp_path, authority)) as server:
        assert await server.ask(root_of(authority)) == b""
        assert await code_of(server.ask(root_of(trustme.CA()))) is grpc.StatusCode.UNAVAILABLE


async def test_with_an_authority_of_clients_each_needs_its_certificate(tmp_path: Path) -> None:
    authority, clients = trustme.CA(), trustme.CA()
    files = write_pair(tmp_path, authority)
    files = CertificateFiles(files.certificate, files.key, tmp_path / "clients.pem")
    (tmp_path / "clients.pem").write_bytes(root_of(clients))
    mine, stranger = clients.issue_cert("mac.example"), trustme.CA().issue_cert("mac.example")
    async with serving(files) as server:
        pairs = [(one.private_key_pem.bytes(), one.cert_chain_pems[0].bytes()) for one in (mine, stranger)]
        assert await server.ask(root_of(authority), pairs[0]) == b"mac.example"
        assert await code_of(server.ask(root_of(authority))) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(server.ask(root_of(authority), pairs[1])) is grpc.StatusCode.UNAVAILABLE


async def test_changed_certificates_are_shown_to_the_next_connection(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    async with serving(write_pair(tmp_path, old)) as server:
        credentials = grpc.ssl_channel_credentials(root_of(old))
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            await channel.unary_unary(METHOD)(b"", timeout=LIMIT_S)
            write_pair(tmp_path, new)
            await server.certificates.refresh()
            assert await server.ask(root_of(new)) == b""
            assert await code_of(server.ask(root_of(old))) is grpc.StatusCode.UNAVAILABLE
            await channel.unary_unary(METHOD)(b"", timeout=LIMIT_S)  # what is connected stays so
    assert server.events == ["certificates changed"]


@pytest.mark.parametrize("harm", ["key of another", "nonsense", "gone"])
async def test_certificates_that_do_not_go_together_change_nothing(tmp_path: Path, harm: str) -> None:
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    async with serving(files) as server:
        if harm == "key of another":
            files.key.write_bytes(write_pair(tmp_path / "other", authority).key.read_bytes())
        elif harm == "nonsense":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\n")
        else:
            files.key.unlink()
        for _ in range(3):
            await server.certificates.refresh()
        assert await server.ask(root_of(authority)) == b""
    assert server.events == ["certificates not read again"]


async def test_files_that_could_not_be_read_once_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = trustme.CA(), trustme.CA()
    async with serving(write_pair(tmp_path, old)) as server:
        write_pair(tmp_path, new)
        with monkeypatch.context() as broken:
            broken.setattr(tls, "MAX_PEM_BYTES", 0)
            for _ in range(2):
                await server.certificates.refresh()
        await server.certificates.refresh()
        assert await server.ask(root_of(new)) == b""
    assert server.events == ["certificates not read again", "certificates changed"]


@pytest.mark.parametrize("what", ["certificate", "key", "client_ca"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, what: str) -> None:
    files = write_pair(tmp_path, trustme.CA())
    (tmp_path / "bad").write_text("nothing")
    paths = {"certificate": files.certificate, "key": files.key, "client_ca": None}
    log: Any = structlog.wrap_logger(None, processors=[])
    for path in (tmp_path / "bad", tmp_path / "none"):
        with pytest.raises(CertificateError, match=path.name):
            Certificates(CertificateFiles(**{**paths, what: path}), log)  # type: ignore[arg-type]


def test_a_key_that_is_encrypted_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    files = write_pair(tmp_path, trustme.CA())
    files.key.write_bytes(
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIBpjBABgkqhkiG9w0BBQ0wMzAbBgkqhkiG9w0BBQwwDgQI\n"
        b"-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with pytest.raises(CertificateError, match="not encrypted"):
        Certificates(files, structlog.wrap_logger(None, processors=[]))
