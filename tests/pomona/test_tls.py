"""The client over TLS: whom it trusts, and who it is."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pomona
import pytest

from tests.support.certificates import Certificates, write_certificates
from tests.support.scripted_server import ScriptedServer, answer


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def address(own: Certificates) -> Iterator[str]:
    with ScriptedServer({"StreamGenerate": answer("Hi")}, credentials=own.server_credentials()) as server:
        yield server.address


@pytest.mark.parametrize("kind", ["path", "text", "bytes"])
def test_an_authority_is_a_file_or_its_bytes(address: str, own: Certificates, kind: str) -> None:
    authority = {"path": own.authority, "text": str(own.authority), "bytes": own.authority.read_bytes()}[kind]
    with pomona.connect(address, tls_ca=authority, token="secret", timeout_s=20) as client:
        assert client.generate("smol", "x").result().text == "Hi"


async def test_asyncio_has_tls_too(address: str, own: Certificates) -> None:
    async with pomona.connect_async(address, tls_ca=own.authority, token="secret", timeout_s=20) as client:
        assert (await client.generate("smol", "x").result()).text == "Hi"


@pytest.mark.parametrize("whom", ["another", "the system's"])
def test_a_server_of_another_authority_is_not_talked_to(address: str, foreign: Certificates, whom: str) -> None:
    authority = foreign.authority if whom == "another" else True
    with pomona.connect(address, tls_ca=authority, token="secret", timeout_s=20) as client:
        with pytest.raises(pomona.PomonaError) as caught:
            client.generate("smol", "x").result()
        assert caught.value.code == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("shows", [True, False])
def test_a_server_may_ask_for_the_clients_certificate(own: Certificates, tmp_path: Path, shows: bool) -> None:
    client_side = write_certificates(tmp_path, "app")
    pair = [(own.key.read_bytes(), own.certificate.read_bytes())]
    asking = grpc.ssl_server_credentials(pair, client_side.authority.read_bytes(), require_client_auth=True)
    shown = (client_side.certificate, client_side.key) if shows else None
    with (
        ScriptedServer({"StreamGenerate": answer("Hi")}, credentials=asking) as server,
        pomona.connect(server.address, tls_ca=own.authority, tls_cert=shown, timeout_s=20) as client,
    ):
        assert _outcome(client) == ("Hi" if shows else grpc.StatusCode.UNAVAILABLE)


def _outcome(client: pomona.Client) -> object:
    try:
        return client.generate("smol", "x").result().text
    except pomona.PomonaError as failure:
        return failure.code
