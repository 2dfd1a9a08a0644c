"""Addresses, certificates and tokens."""

from pathlib import Path

import grpc
import pytest
import trustme
from pomona.v1 import model_pb2

from tests.support.scripted_server import Fail, Hold, ScriptedServer

from .conftest import Run

CERTIFICATES = Path(__file__).parent / "certificates"


@pytest.mark.parametrize("address", ["http://localhost:50051", "localhost", ":50051", "a b:1", "127.0.0.1:99999", ""])
def test_address_that_is_none_is_a_usage_error(run: Run, address: str) -> None:
    result = run("models", "--server", address)
    assert result.exit_code == 2
    assert "HOST:PORT or unix:PATH" in result.stderr


def test_unix_socket_is_an_address(run: Run, tmp_path: Path) -> None:
    with ScriptedServer({"ListModels": [model_pb2.ListModelsResponse()]}, address=f"unix:{tmp_path}/s.sock") as server:
        result = run("models", "--server", server.address)
    assert (result.exit_code, result.stderr) == (0, "no models\n")


def test_token_of_a_file_goes_with_the_call(server: ScriptedServer, run: Run, tmp_path: Path) -> None:
    server.scripts["ListModels"] = [model_pb2.ListModelsResponse()]
    (tmp_path / "token").write_text("s3cret\n")
    assert run("models", "--token-file", str(tmp_path / "token")).exit_code == 0
    assert server.call("ListModels").metadata["authorization"] == "Bearer s3cret"


def test_no_token_means_no_authorization(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [model_pb2.ListModelsResponse()]
    run("models")
    assert "authorization" not in server.call("ListModels").metadata


def test_token_is_not_sent_in_the_clear_to_another_machine(run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    result = run("models", "--server", "example.org:50051", "--token-file", str(tmp_path / "token"))
    assert (result.exit_code, "--tls-ca" in result.stderr, "s3cret" in result.stderr) == (2, True, False)


@pytest.mark.parametrize("option", ["--tls-ca", "--token-file"])
def test_file_that_is_not_there_is_a_usage_error(run: Run, tmp_path: Path, option: str) -> None:
    result = run("models", option, str(tmp_path / "none"))
    assert result.exit_code == 2
    assert option in result.stderr
    assert "No such file" in result.stderr


@pytest.mark.parametrize("content", ["", "two words", "line\nline"])
def test_file_without_one_token_is_a_usage_error(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    assert run("models", "--token-file", str(tmp_path / "token")).exit_code == 2


def test_timeout_is_the_deadline_of_the_call(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [Hold()]
    result = run("models", "--timeout", "0.2")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: DEADLINE_EXCEEDED")


def test_certificate_is_checked_and_the_token_goes_within_tls(run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    pair = ((CERTIFICATES / "localhost.key").read_bytes(), (CERTIFICATES / "localhost.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair])
    with ScriptedServer({"ListModels": [model_pb2.ListModelsResponse()]}, credentials=credentials) as server:
        trusting = ("--tls-ca", str(CERTIFICATES / "localhost.pem"), "--token-file", str(tmp_path / "token"))
        trusted = run("models", "--server", server.address, *trusting)
        plain = run("models", "--server", server.address)
    assert (trusted.exit_code, trusted.stderr) == (0, "no models\n")
    assert server.call("ListModels").metadata["authorization"] == "Bearer s3cret"
    assert (plain.exit_code, plain.stderr.startswith(f"error: no connection to {server.address}")) == (1, True)
    assert "--tls-ca" in plain.stderr


def test_the_certificate_of_the_environment_is_trusted_but_not_asked_for_at_a_socket(run: Run, tmp_path: Path) -> None:
    pair = ((CERTIFICATES / "localhost.key").read_bytes(), (CERTIFICATES / "localhost.pem").read_bytes())
    nothing = {"ListModels": [model_pb2.ListModelsResponse()]}
    usual = str(CERTIFICATES / "localhost.pem")
    with ScriptedServer(dict(nothing), credentials=grpc.ssl_server_credentials([pair])) as server:
        assert run("models", "--server", server.address, ca=usual).exit_code == 0
    with ScriptedServer(dict(nothing), address=f"unix:{tmp_path}/s.sock") as server:
        assert run("models", "--server", server.address, ca=usual).exit_code == 0
    missing = run("models", ca=str(tmp_path / "none"))
    assert (missing.exit_code, "POMONA_CA: cannot read" in missing.stderr) == (2, True)


def test_a_clients_certificate_is_shown_to_a_server_that_wants_one(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    made, mine = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("mac.example")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "mine.pem").write_bytes(mine.cert_chain_pems[0].bytes())
    (tmp_path / "mine.key").write_bytes(mine.private_key_pem.bytes())
    pair = (made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes())
    credentials = grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), require_client_auth=True)
    with ScriptedServer({"ListModels": [model_pb2.ListModelsResponse()]}, credentials=credentials) as server:
        trusting = ("models", "--server", server.address, "--tls-ca", str(tmp_path / "ca.pem"))
        shown = ("--tls-client-cert", str(tmp_path / "mine.pem"), "--tls-client-key", str(tmp_path / "mine.key"))
        assert run(*trusting, *shown).exit_code == 0
        assert run(*trusting).exit_code == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tls-client-cert", "a"], "go together"),
        (["--tls-client-key", "a"], "go together"),
        (["--tls-client-cert", "a", "--tls-client-key", "b"], "--tls-ca"),
    ],
)
def test_half_of_a_clients_certificate_is_a_usage_error(run: Run, options: list[str], words: str) -> None:
    result = run("models", *options)
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_a_call_that_wants_a_token_is_told_where_it_comes_from(server: ScriptedServer, run: Run) -> None:
    server.scripts["ListModels"] = [Fail(grpc.StatusCode.UNAUTHENTICATED, "no token", "CREDENTIALS_MISSING")]
    result = run("models")
    assert (result.exit_code, "POMONA_TOKEN" in result.stderr) == (1, True)


def test_certificate_file_that_holds_none_is_told(run: Run, server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    result = run("models", "--tls-ca", str(tmp_path / "ca.pem"))
    assert (result.exit_code, "holds no certificate" in result.stderr) == (2, True)


def test_name_that_does_not_resolve_is_told(run: Run) -> None:
    result = run("models", "--server", "nohost.invalid:1", "--timeout", "5")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("error: ")
