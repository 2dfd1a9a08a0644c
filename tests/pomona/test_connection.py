"""Where the client connects, and what it never does."""

import subprocess
import sys
from pathlib import Path

import pomona
import pytest

from tests.support.scripted_server import ScriptedServer, answer


def test_a_token_never_goes_over_a_network_in_the_clear() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        pomona.connect("models.example:50051", token="secret")
    with pytest.raises(ValueError, match="in the clear"):
        pomona.connect_async("10.0.0.1:50051", token="secret")
    pomona.connect("models.example:50051", token="secret", tls_ca=True).close()
    for address in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/nowhere"):
        pomona.connect(address, token="secret").close()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_every_call_has_a_deadline(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="deadline"):
        pomona.connect("127.0.0.1:1", timeout_s=timeout_s)


def test_a_certificate_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pomona.connect("127.0.0.1:1", tls_ca=tmp_path / "none.pem")


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    with (
        ScriptedServer({"StreamGenerate": answer("Hi")}, address=f"unix:{tmp_path}/s") as server,
        pomona.connect(server.address, token="secret") as client,
    ):
        assert client.generate("smol", "x").result().text == "Hi"


def test_the_contract_costs_nothing_of_the_client() -> None:
    code = "import sys, pomona.v1.common_pb2; print(sorted({'grpc', 'pomona.client'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_every_name_that_is_offered_is_there() -> None:
    assert all(getattr(pomona, name) for name in pomona.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pomona.nothing  # noqa: B018
