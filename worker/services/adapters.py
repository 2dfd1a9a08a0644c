"""The AdapterService: adapters of this worker's model, listed, mounted and unmounted while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import model_pb2

from models.adapters.names import is_adapter_name
from worker import wire
from worker.adapters.adapters import Adapters, LoadWish
from worker.adapters.mounts import Mount, MountState
from worker.errors import InvalidField, MalformedRequest
from worker.failures import failure_of
from worker.services.edge import Call, Edge

SERVICE = "pomona.v1.AdapterService"
MAX_PAGE = 1000
MAX_WAIT_S, DEFAULT_WAIT_S = 3600.0, 30.0
# Of a caller's deadline, so that it gets an answer and no silence.
ANSWER_S = 0.25
SHA256_DIGITS = 64

STATES = {
    MountState.ACTIVE: model_pb2.ADAPTER_STATE_ACTIVE,
    MountState.UNLOADING: model_pb2.ADAPTER_STATE_UNLOADING,
    MountState.RETIRED: model_pb2.ADAPTER_STATE_UNLOADING,
    MountState.EVICTED: model_pb2.ADAPTER_STATE_UNLOADING,
}


@dataclass(frozen=True, slots=True)
class AdapterService:
    """Answers ListAdapters, LoadAdapter and UnloadAdapter.

    Attributes:
        model: canonical name.
        adapters: of the model.
        check_active: raises what a caller gets while there is no model.
    """

    model: str
    adapters: Adapters
    check_active: Callable[[], None]

    def handlers(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Return the methods of this service for a server."""
        methods = {
            "ListAdapters": edge.unary(self.list_adapters),
            "LoadAdapter": edge.unary(self.load_adapter),
            "UnloadAdapter": edge.unary(self.unload_adapter),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def list_adapters(self, body: bytes, _call: Call) -> model_pb2.ListAdaptersResponse:
        """List what is mounted, is being mounted, could not be, and is in the store, by name."""
        request = wire.parse(body, model_pb2.ListAdaptersRequest)
        self._check(request.model)
        if request.page_size < 0:
            raise InvalidField("page_size", "at least 0")
        stored = await asyncio.to_thread(self.adapters.store.names)
        mounted = {mount.name: self._mounted(mount) for mount in self.adapters.mounts.all()}
        others = {*stored, *self.adapters.loading, *self.adapters.failed} - set(mounted)
        listed = {**mounted, **{name: self._other(name) for name in others}}
        # Names come in order, and each page begins behind the last name of the one before.
        names = [name for name in sorted(listed) if name > request.page_token]
        page = names[: min(request.page_size or MAX_PAGE, MAX_PAGE)]
        is_last = len(page) == len(names)
        return model_pb2.ListAdaptersResponse(
            adapters=[listed[name] for name in page], next_page_token="" if is_last else page[-1]
        )

    async def load_adapter(self, body: bytes, _call: Call) -> model_pb2.LoadAdapterResponse:
        """Mount an adapter of the store."""
        request = wire.parse(body, model_pb2.LoadAdapterRequest)
        self._check(request.model)
        _check_name(request.adapter, "adapter")
        if request.source:
            _check_name(request.source, "source")
        if request.expected_sha256 and not _is_sha256(request.expected_sha256):
            raise InvalidField("expected_sha256", f"{SHA256_DIGITS} hexadecimal digits")
        wish = LoadWish(
            request.adapter, request.source, request.pinned, request.replace, weights_sha256=request.expected_sha256
        )
        mount, was_there = await self.adapters.load(wish)
        return model_pb2.LoadAdapterResponse(adapter=self._mounted(mount), already_loaded=was_there)

    async def unload_adapter(self, body: bytes, call: Call) -> model_pb2.UnloadAdapterResponse:
        """Unmount an adapter, once the requests that use it have ended."""
        request = wire.parse(body, model_pb2.UnloadAdapterRequest)
        self._check(request.model)
        if request.adapter in self.adapters.failed and self.adapters.mounts.get(request.adapter) is None:
            return self._given_up(request.adapter)
        remaining_s = call.time_remaining()
        wait_s = DEFAULT_WAIT_S if remaining_s is None else min(max(0.0, remaining_s - ANSWER_S), MAX_WAIT_S)
        mount, freed_bytes = await self.adapters.unload(request.adapter, wait_s)
        told = self._mounted(mount)
        is_stored = self.adapters.store.find(mount.source) is not None
        told.state = model_pb2.ADAPTER_STATE_AVAILABLE if is_stored else model_pb2.ADAPTER_STATE_UNSPECIFIED
        return model_pb2.UnloadAdapterResponse(adapter=told, freed_bytes=freed_bytes)

    def _given_up(self, name: str) -> model_pb2.UnloadAdapterResponse:
        """Forget one that should have been there from the start and could not be mounted."""
        del self.adapters.failed[name]
        is_stored = self.adapters.store.find(name) is not None
        state = model_pb2.ADAPTER_STATE_AVAILABLE if is_stored else model_pb2.ADAPTER_STATE_UNSPECIFIED
        return model_pb2.UnloadAdapterResponse(adapter=model_pb2.Adapter(adapter=name, model=self.model, state=state))

    def _check(self, model: str) -> None:
        self.check_active()
        if model != self.model:
            raise MalformedRequest("the request is for another model")

    def _mounted(self, mount: Mount) -> model_pb2.Adapter:
        told = model_pb2.Adapter(
            adapter=mount.name,
            model=self.model,
            revision=mount.revision,
            rank=mount.rank,
            scale=mount.scale,
            state=STATES[mount.state],
            pinned=mount.pinned,
            memory_bytes=mount.nbytes,
            request_count=mount.num_requests,
            mounted_layers=mount.num_layers,
            skipped_tensors=mount.num_skipped,
        )
        if mount.last_used is not None:
            told.last_used_time.CopyFrom(_timestamp(mount.last_used))
        return told

    def _other(self, name: str) -> model_pb2.Adapter:
        error = self.adapters.failed.get(name)
        state = model_pb2.ADAPTER_STATE_AVAILABLE if error is None else model_pb2.ADAPTER_STATE_FAILED
        if name in self.adapters.loading:
            state, error = model_pb2.ADAPTER_STATE_LOADING, None
        told = model_pb2.Adapter(adapter=name, model=self.model, state=state)
        if error is not None:
            told.failure.CopyFrom(failure_of(error, model=self.model))
        return told


def _check_name(name: str, field: str) -> None:
    if not is_adapter_name(name):
        raise InvalidField(field, "a name as models have them: letters, digits, '.', '_' and '-', with one '/' at most")


def _is_sha256(text: str) -> bool:
    return len(text) == SHA256_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in text)


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp
