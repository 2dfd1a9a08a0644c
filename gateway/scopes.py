"""Which scope each RPC needs; one that is not listed needs `admin`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.principal import (
    ADMIN,
    EMBED,
    GENERATE,
    READ_MODELS,
    TRANSCRIBE,
    WRITE_ADAPTERS,
    WRITE_MODELS,
)

EVERYBODY = ""  # whoever has a token that is good
EXEMPT = "/grpc.health.v1.Health/Check"

_SERVICES: Mapping[str, str] = {
    "pomona.v1.GenerationService": GENERATE,
    "pomona.v1.EmbeddingService": EMBED,
    "pomona.v1.TranscriptionService": TRANSCRIBE,
    "pomona.v1.ModelService": WRITE_MODELS,
    "pomona.v1.AdapterService": WRITE_ADAPTERS,
    "pomona.v1.ServerService": READ_MODELS,
    "pomona.v1.AdminService": ADMIN,
    "grpc.health.v1.Health": EVERYBODY,
    "grpc.reflection.v1.ServerReflection": READ_MODELS,
    "grpc.reflection.v1alpha.ServerReflection": READ_MODELS,
}
_METHODS: Mapping[str, str] = {
    "pomona.v1.ModelService/ListModels": READ_MODELS,
    "pomona.v1.ModelService/GetModel": READ_MODELS,
    "pomona.v1.ModelService/WatchModels": READ_MODELS,
    "pomona.v1.ModelService/EstimateModel": READ_MODELS,
    "pomona.v1.AdapterService/ListAdapters": READ_MODELS,
    "pomona.v1.ServerService/GetServerInfo": EVERYBODY,
    # Of a caller's own requests; `admin` sees and ends all.
    "pomona.v1.AdminService/ListRequests": EVERYBODY,
    "pomona.v1.AdminService/CancelRequest": EVERYBODY,
}


def scope_of(method: str) -> str:
    """Return the scope that an RPC needs; empty for one that any caller with a good token may use.

    Args:
        method: full name, as in `/package.Service/Method`.
    """
    name = method.removeprefix("/")
    return _METHODS.get(name, _SERVICES.get(name.rpartition("/")[0], ADMIN))
