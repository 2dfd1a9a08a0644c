"""Metrics of a whole gateway under load: they add up with what its clients counted."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
from pomona.v1 import common_pb2, generation_pb2, model_pb2

from gateway.catalogue import CatalogueModel
from gateway.ending import OWN_USAGE_KEY
from gateway.logs import LogRing
from gateway.metrics import Metrics
from gateway.scrape import Scraper
from gateway.token_file import change_tokens
from gateway.watched import Watched
from tests.gateway.scraping import Page, get
from tests.gateway.test_metrics import END
from tests.gateway.test_server import FIRST, LIMIT_S, Running, running, settings_for
from tests.support.scripted import GENERATE, STREAM_GENERATE, write_script
from tests.support.scripted_worker import ScriptedPool, catalogue, relay_parts
from tests.support.waiting import eventually

USAGE = common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_prompt_tokens=2)
COUNT = "/pomona.v1.GenerationService/CountTokens"
BEGIN: dict[str, Any] = {"metadata": {"x-pomona-begun": "1"}}
METHODS: dict[str, list[dict[str, Any]]] = {
    STREAM_GENERATE: [
        {"read": 1},
        {"trailers": {OWN_USAGE_KEY: USAGE.SerializeToString().hex()}},
        {"send": FIRST.SerializeToString().hex(), "count": 5},
    ],
    GENERATE: [{"read": 1}, {"error": {"code": "INVALID_ARGUMENT", "reason": "CONTEXT_TOO_LONG"}}],
    COUNT: [{"read": 1}, BEGIN, {"hang": True}],
}
CALLS = 60


class Client:
    """Counts what its calls give."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.codes: Counter[tuple[str, str]] = Counter()
        self.messages = 0

    async def call(self, method: str) -> None:
        if method == STREAM_GENERATE:
            call: Any = self.server.generation.StreamGenerate(
                generation_pb2.StreamGenerateRequest(model="alias-a"), timeout=LIMIT_S
            )
        elif method == GENERATE:
            call = self.server.generation.Generate(generation_pb2.GenerateRequest(model="model-a"), timeout=LIMIT_S)
        else:
            request = generation_pb2.CountTokensRequest(model="nobody" if method == "unknown" else "model-a")
            call = self.server.generation.CountTokens(request, timeout=0.5)
        try:
            if method == STREAM_GENERATE:
                async for _ in call:
                    self.messages += 1
            else:
                await call
        except grpc.aio.AioRpcError as error:
            self.codes[method, error.code().name] += 1
        else:
            self.codes[method, "OK"] += 1


async def load(server: Running, address: str) -> tuple[Client, list[Page]]:
    """Have clients call, eight at a time, and scrape meanwhile."""
    client = Client(server)
    dice = random.Random(7)
    methods = dice.choices((STREAM_GENERATE, GENERATE, COUNT, "unknown"), (8, 4, 1, 2), k=CALLS)
    places = asyncio.Semaphore(8)

    async def one(method: str) -> None:
        async with places:
            await client.call(method)

    calls = asyncio.gather(*(one(method) for method in methods))
    pages = [await get(address)]
    while not calls.done():
        pages.append(await get(address))
    await calls
    return client, pages


async def test_under_load_the_numbers_add_up_with_what_clients_counted(tmp_path: Path) -> None:
    write_script(tmp_path, methods=METHODS)
    settings = settings_for(tmp_path, metrics={"listen": "127.0.0.1:0"})
    async with running(settings) as server:
        address = server.gateway.journal.observation.metrics_address
        await server.models.LoadModel(model_pb2.LoadModelRequest(model="model-a"), timeout=LIMIT_S)
        client, pages = await load(server, address)
        requests = server.gateway.core.requests
        await eventually(lambda: not len(requests), LIMIT_S)
        page = await get(address)
    check_requests(page, client)
    check_streams(page, client)
    seen = [one.value("pomona_requests_total") for one in pages]
    assert seen == sorted(seen)
    assert len(pages) > 3
    assert page.value("pomona_model_state", model="model-a", state="active") == 1
    assert page.value("pomona_model_changes_total", model="model-a", state="loading") == 1
    assert page.value("pomona_model_load_duration_seconds_count", model="model-a") == 1
    assert page.value("pomona_worker_footprint_bytes", model="model-a") == 1 << 20
    assert page.value("pomona_server_footprint_bytes") > 1 << 20
    assert page.value("pomona_requests_in_flight") == 0


async def test_calls_that_nobody_vouches_for_are_counted_too(tmp_path: Path) -> None:
    write_script(tmp_path)
    change_tokens(tmp_path / "tokens.json", lambda _: ())
    security = {"tokens": str(tmp_path / "tokens.json")}
    async with running(settings_for(tmp_path, metrics={"listen": "127.0.0.1:0"}, security=security)) as server:
        for method in (GENERATE, STREAM_GENERATE, GENERATE):
            await Client(server).call(method)
        page = await get(server.gateway.journal.observation.metrics_address)
    code, reason = "UNAUTHENTICATED", "CREDENTIALS_MISSING"
    assert page.value("pomona_requests_total", method=GENERATE[1:], model="", code=code, reason=reason) == 2
    assert page.value("pomona_requests_total") == 3


def check_requests(page: Page, client: Client) -> None:
    """Compare RPCs by method and code."""
    for method in (STREAM_GENERATE, GENERATE):
        for code in ("OK", "INVALID_ARGUMENT", "CANCELLED", "DEADLINE_EXCEEDED"):
            counted = page.value("pomona_requests_total", method=method[1:], code=code, model="model-a")
            assert counted == client.codes[method, code], (method, code)
    unknown = client.codes["unknown", "NOT_FOUND"]
    assert page.value("pomona_requests_total", method=COUNT[1:], model="", reason="MODEL_NOT_FOUND") == unknown > 0
    late = client.codes[COUNT, "DEADLINE_EXCEEDED"]
    assert page.value("pomona_requests_total", method=COUNT[1:], model="model-a") == late > 0
    assert page.value("pomona_requests_total", reason="CONTEXT_TOO_LONG") == client.codes[GENERATE, "INVALID_ARGUMENT"]
    assert page.value("pomona_request_duration_seconds_count") == CALLS + 1  # and the load


def check_streams(page: Page, client: Client) -> None:
    """Compare messages and tokens."""
    streams = client.codes[STREAM_GENERATE, "OK"]
    assert client.messages == 5 * streams > 0
    assert page.value("pomona_sent_messages_total", model="model-a") == client.messages
    assert page.value("pomona_message_gap_seconds_count", model="model-a") == 4 * streams
    assert page.value("pomona_request_prompt_tokens_total", model="model-a") == 7 * streams
    assert page.value("pomona_request_cached_prompt_tokens_total", model="model-a") == 2 * streams
    assert page.value("pomona_request_completion_tokens_total", model="model-a") == 3 * streams
    first = page.value("pomona_request_first_message_seconds_count", method=STREAM_GENERATE[1:])
    assert first == streams


async def test_others_have_their_turns_while_a_large_page_is_written() -> None:
    known = catalogue(*(CatalogueModel(f"m{number}", Path(__file__)) for number in range(30)))
    metrics = Metrics()
    for model in known.models:
        metrics.ended(replace(END, model=model.name))
    parts = relay_parts(ScriptedPool(), LogRing(1))
    scraper = Scraper(metrics, Watched(known, parts.workers, parts.admission, parts.requests))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    page = await scraper.text()
    taking = asyncio.create_task(take_turns())
    await scraper._written()
    taking.cancel()
    assert turns > 10
    told = Page(200, {}, page.body.decode())
    assert told.value("pomona_requests_total") == 30
    assert sum(line.startswith("# TYPE") for line in told.body.splitlines()) == len(told.metrics)
