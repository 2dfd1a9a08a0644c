"""The AdapterService of a real worker, and requests that name adapters."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from pomona.v1 import common_pb2, model_pb2, model_pb2_grpc
from pomona.v1 import generation_pb2 as pb

from tests.support.tiny_adapters import write_random
from tests.support.tiny_models import write_llama
from tests.support.worker_client import Refusal, WorkerClient, client_of, refusal_of, request, stamps
from tests.support.worker_process import MODEL, WorkerProcess

A_BYTES = 2 * 4 * 4 * sum((128, 96, 96, 128, 192, 192, 192))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_random(folder / "a", seed=1)
    write_random(folder / "org" / "b", seed=2, layout="peft")
    write_random(folder / "first", seed=3)
    write_random(folder / "bad", seed=4)
    (folder / "bad" / "adapter_config.json").write_text('{"use_dora": true}')
    return folder


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[WorkerProcess]:
    desired = [{"adapter": "first", "pinned": True}, {"adapter": "lost"}]
    process = WorkerProcess(
        write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny"), adapters_folder=str(store), adapters=desired
    )
    yield process
    process.end()


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(worker) as connected:
        await connected.is_active()
        yield connected


class Service:
    """Calls the AdapterService."""

    def __init__(self, client: WorkerClient) -> None:
        self._stub: Any = model_pb2_grpc.AdapterServiceStub(client.channel)
        self._metadata = client.worker.metadata()

    async def load(self, adapter: str, **fields: Any) -> model_pb2.LoadAdapterResponse:
        given: dict[str, Any] = {"model": MODEL, "adapter": adapter, **fields}
        asked = model_pb2.LoadAdapterRequest(**given)
        return await self._stub.LoadAdapter(asked, metadata=self._metadata)

    async def unload(self, adapter: str, timeout_s: float = 10) -> model_pb2.UnloadAdapterResponse:
        asked = model_pb2.UnloadAdapterRequest(model=MODEL, adapter=adapter)
        return await self._stub.UnloadAdapter(asked, metadata=self._metadata, timeout=timeout_s)

    async def list(self, **fields: Any) -> model_pb2.ListAdaptersResponse:
        asked = model_pb2.ListAdaptersRequest(model=MODEL, **fields)
        return await self._stub.ListAdapters(asked, metadata=self._metadata)

    async def refused(self, call: Any) -> Refusal:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        return refusal_of(raised.value)


@pytest.fixture
async def service(client: WorkerClient) -> AsyncIterator[Service]:
    made = Service(client)
    yield made
    for each in (await made.list()).adapters:
        if each.state == model_pb2.ADAPTER_STATE_ACTIVE and not each.pinned:
            await made.unload(each.adapter)


def uses(*names: str) -> list[common_pb2.AdapterUse]:
    return [common_pb2.AdapterUse(adapter=name) for name in names]


async def test_what_should_be_there_is_before_the_worker_is_active(service: Service) -> None:
    listed = {each.adapter: each for each in (await service.list()).adapters}
    assert (listed["first"].state, listed["first"].pinned) == (model_pb2.ADAPTER_STATE_ACTIVE, True)
    assert (listed["lost"].state, listed["lost"].failure.reason) == (
        model_pb2.ADAPTER_STATE_FAILED,
        "ADAPTER_NOT_FOUND",
    )
    assert listed["a"].state == model_pb2.ADAPTER_STATE_AVAILABLE


async def test_an_adapter_is_loaded_used_and_unloaded(client: WorkerClient, service: Service) -> None:
    base = (await client.ask(request())).sequences[0].text
    loaded = await service.load("a")
    told = loaded.adapter
    assert (loaded.already_loaded, told.state, told.rank, told.scale) == (False, model_pb2.ADAPTER_STATE_ACTIVE, 4, 2.0)
    assert (told.memory_bytes, told.mounted_layers, told.skipped_tensors) == (A_BYTES, 14, 0)
    assert (await service.load("a")).already_loaded
    await service.load("b", source="org/b")

    answer = await client.ask(request(adapters=uses("a", "b")))
    assert answer.sequences[0].text != base
    assert [(each.adapter, each.scale) for each in answer.resolved_model.adapters] == [("a", 1.0), ("b", 1.0)]
    assert answer.resolved_model.adapters[0].revision == told.revision
    events = await client.stream(request(pb.StreamGenerateRequest, adapters=uses("a")))
    assert [each.adapter for each in events[0].started.resolved_model.adapters] == ["a"]
    plain = await client.ask(request())
    assert (plain.sequences[0].text, len(plain.resolved_model.adapters)) == (base, 0)

    freed = await service.unload("a")
    assert (freed.freed_bytes, freed.adapter.state) == (A_BYTES, model_pb2.ADAPTER_STATE_AVAILABLE)
    assert freed.adapter.request_count == 2
    refusal = await client.refused(request(adapters=uses("a")))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")
    assert refusal.metadata == {"adapter": "a", "available": "b, first"}


async def test_kept_prompts_are_shared_by_equal_adapters_alone(client: WorkerClient, service: Service) -> None:
    await service.load("a")
    await service.load("b", source="org/b")
    half = common_pb2.AdapterUse(adapter="a", scale=0.5)
    asked = [uses("a"), [], uses("b"), [half], uses("a", "b"), uses("b", "a")]
    spec = pb.GenerationSpec(prompt="".join(chr(97 + index * 7 % 26) for index in range(100)))

    async def ask(used: list[common_pb2.AdapterUse]) -> tuple[str, int]:
        answer = await client.ask(request(spec=spec, adapters=used))
        return answer.sequences[0].text, answer.usage.cached_prompt_tokens

    cold = [await ask(used) for used in asked]
    warm = [await ask(used) for used in asked]
    assert [cached for _, cached in cold] == [0] * 6
    assert [cached for _, cached in warm] == [96] * 6
    assert [text for text, _ in warm] == [text for text, _ in cold]


async def test_tokens_are_counted_for_adapters_that_there_are(client: WorkerClient, service: Service) -> None:
    await service.load("a")
    counted = await client.ask(request(pb.CountTokensRequest, prompt="ab", adapters=uses("a")))
    assert [each.adapter for each in counted.resolved_model.adapters] == ["a"]
    refusal = await client.refused(request(pb.CountTokensRequest, prompt="ab", adapters=uses("nobody")))
    assert refusal.reason == "ADAPTER_NOT_FOUND"


async def test_pages_go_on_behind_the_last_name(service: Service) -> None:
    names: list[str] = []
    token = ""
    while True:
        page = await service.list(page_size=2, page_token=token)
        names += [each.adapter for each in page.adapters]
        if not (token := page.next_page_token):
            break
    assert names == ["a", "bad", "first", "lost", "org/b"]


async def test_unloading_waits_until_the_deadline_of_its_caller(client: WorkerClient, service: Service) -> None:
    await service.load("a")
    asked = request(pb.StreamGenerateRequest, "long", adapters=uses("a"))
    asked.spec.stopping.max_tokens = 3000
    asked.spec.stopping.ignore_eos = True
    call = client.call(pb.StreamGenerateRequest, asked.SerializeToString(), stamps(asked))
    await call.read()
    refusal = await service.refused(service.unload("a", 0.6))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ADAPTER_IN_USE")
    unloading = asyncio.ensure_future(service.unload("a", 20))
    await asyncio.sleep(0)
    call.cancel()
    assert (await unloading).freed_bytes == A_BYTES


BAD = {
    "a path": ({"adapter": "../a"}, "INVALID_FIELD"),
    "a name with a plus": ({"adapter": "a+b"}, "INVALID_FIELD"),
    "no name": ({"adapter": ""}, "INVALID_FIELD"),
    "a source that is a path": ({"adapter": "a", "source": "/etc"}, "INVALID_FIELD"),
    "a digest that is none": ({"adapter": "a", "expected_sha256": "x" * 64}, "INVALID_FIELD"),
    "other weights than expected": ({"adapter": "a", "expected_sha256": "0" * 64}, "ADAPTER_INCOMPATIBLE"),
    "one that is not there": ({"adapter": "nobody"}, "ADAPTER_NOT_FOUND"),
    "one of a kind that is not run": ({"adapter": "bad"}, "ADAPTER_INCOMPATIBLE"),
    "other content of the name": ({"adapter": "first", "source": "a"}, "ADAPTER_CONFLICT"),
    "another model": ({"adapter": "a", "model": "other"}, "MALFORMED_REQUEST"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_loaded_is_refused(service: Service, store: Path, name: str) -> None:
    fields, reason = BAD[name]
    before = (await service.list()).adapters
    refusal = await service.refused(service.load(**fields))
    assert refusal.reason == reason
    assert str(store) not in refusal.message
    assert (await service.list()).adapters == before


async def test_the_expected_digest_is_that_of_the_weights(service: Service, store: Path) -> None:
    digest = hashlib.sha256((store / "a" / "adapters.safetensors").read_bytes()).hexdigest()
    assert not (await service.load("a", expected_sha256=digest)).already_loaded


@pytest.mark.parametrize(
    ("used", "field"),
    [
        ([common_pb2.AdapterUse()], "adapters[0].adapter"),
        ([*uses("first"), common_pb2.AdapterUse(adapter="first", scale=float("nan"))], "adapters[1].scale"),
        ([common_pb2.AdapterUse(adapter="first", scale=1e9)], "adapters[0].scale"),
        (uses(*["first"] * 9), "adapters"),
    ],
)
async def test_uses_out_of_range_are_refused(client: WorkerClient, used: Any, field: str) -> None:
    refusal = await client.refused(request(adapters=used))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field)


async def test_what_could_not_be_mounted_at_the_start_can_be_given_up(service: Service) -> None:
    given_up = await service.unload("lost")
    assert (given_up.adapter.adapter, given_up.freed_bytes) == ("lost", 0)
    assert "lost" not in {each.adapter for each in (await service.list()).adapters}
    assert (await service.refused(service.unload("lost"))).reason == "ADAPTER_NOT_FOUND"
