"""The scope of every RPC, spelled out a second time: who changes one has to mean it."""

from collections.abc import Mapping

import pytest

from gateway.scopes import scope_of
from tests.gateway.guarded import METHODS

EXPECTED: Mapping[str, Mapping[str, str]] = {
    "GenerationService": dict.fromkeys(("Generate", "StreamGenerate", "CountTokens"), "generate"),
    "EmbeddingService": dict.fromkeys(("Embed", "Rerank"), "embed"),
    "TranscriptionService": dict.fromkeys(
        ("Transcribe", "StreamTranscribeRecording", "StreamTranscribe"), "transcribe"
    ),
    "ModelService": {
        **dict.fromkeys(("ListModels", "GetModel", "WatchModels", "EstimateModel"), "models.read"),
        **dict.fromkeys(("LoadModel", "UnloadModel", "PullModel", "DeleteModel", "RefreshCatalogue"), "models.write"),
    },
    "AdapterService": {
        "ListAdapters": "models.read",
        **dict.fromkeys(("LoadAdapter", "UnloadAdapter"), "adapters.write"),
    },
    "ServerService": {"GetServerInfo": "", **dict.fromkeys(("GetStats", "WatchStats"), "models.read")},
    "AdminService": {
        **dict.fromkeys(("ListRequests", "CancelRequest"), ""),
        **dict.fromkeys(("DrainServer", "SetLogLevel", "StreamLogs"), "admin"),
    },
    "Health": dict.fromkeys(("Check", "Watch", "List"), ""),
    "ServerReflection": {"ServerReflectionInfo": "models.read"},
}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_rpc_needs_what_it_always_needed(method: str) -> None:
    service, _, name = method.rpartition("/")
    assert scope_of(method) == EXPECTED[service.rpartition(".")[2]][name]


@pytest.mark.parametrize("method", ["/grpc.channelz.v1.Channelz/GetServers", "/a.B/C", "/", "", "pomona.v1.X/Y"])
def test_what_is_not_known_needs_an_administrator(method: str) -> None:
    assert scope_of(method) == "admin"
