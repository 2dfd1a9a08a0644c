"""The log level of a whole gateway and of its workers, changed by an RPC or by settings that are read again."""

from pathlib import Path

from pomona.v1 import model_pb2, server_pb2

from tests.gateway.test_server import LIMIT_S, running, settings_for
from tests.support.scripted import events_in, write_script
from tests.support.waiting import eventually


async def test_workers_that_run_and_those_to_come_hear_of_another_level(tmp_path: Path) -> None:
    write_script(tmp_path)
    settings = settings_for(tmp_path)

    def told() -> list[str]:
        return [noted["level"] for noted in events_in(tmp_path, "log level")]

    async with running(settings) as server:
        await server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)
        await server.admin.SetLogLevel(server_pb2.SetLogLevelRequest(logger="alias-a", level="debug"), timeout=LIMIT_S)
        assert (told(), server.gateway.journal.levels.gateway) == (["debug"], "info")
        await server.admin.SetLogLevel(server_pb2.SetLogLevelRequest(logger="gateway", level="error"), timeout=LIMIT_S)
        assert (told(), server.gateway.journal.levels.gateway) == (["debug"], "error")
        await server.models.UnloadModel(model_pb2.UnloadModelRequest(model="model-a"), timeout=LIMIT_S)
        await server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)
        again = events_in(tmp_path, "started")[-1]
        assert again["settings"]["log_level"] == "debug"
        server.gateway.core.log_setting.hold_to(settings_for(tmp_path, logs={"level": "warning"}))
        assert server.gateway.journal.levels.gateway == "warning"
        await eventually(lambda: told() == ["debug", "warning"], LIMIT_S)
