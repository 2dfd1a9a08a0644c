"""What loads take: asked once at a time, and no less than what was seen."""

import asyncio

import structlog

from gateway.errors import ModelNotFound
from gateway.model_status import LoadOptions
from gateway.needs import Need, Needs, Size
from tests.support.waiting import eventually

OPTIONS = LoadOptions(context_tokens=512)
LOG = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])


class Source:
    """Says what models take, when it may."""

    def __init__(self) -> None:
        self.may_tell = asyncio.Event()
        self.asked = 0
        self.stamp = "s1"
        self.told: asyncio.Queue[Need] = asyncio.Queue()
        self.needs = Needs(self.estimate, lambda _: self.stamp, LOG)

    async def estimate(self, model: str, _options: LoadOptions) -> Size:
        self.asked += 1
        await self.may_tell.wait()
        if model == "gone":
            raise ModelNotFound(model)
        return Size(100, 50)

    async def ask(self, model: str = "m", options: LoadOptions = OPTIONS) -> Need:
        self.may_tell.set()
        self.needs.ask(model, options, self.told.put_nowait)
        async with asyncio.timeout(10):
            return await self.told.get()


async def test_a_model_is_asked_about_once_at_a_time() -> None:
    source = Source()
    source.needs.ask("m", OPTIONS, source.told.put_nowait)
    await asyncio.sleep(0)
    assert await source.ask() == Need(OPTIONS, Size(100, 50))
    assert (source.asked, source.told.empty()) == (1, True)
    await source.ask()
    assert source.asked == 2


async def test_what_the_same_load_was_seen_to_hold_is_told_the_most_of_it() -> None:
    source = Source()
    source.needs.note("m", "s1", OPTIONS, 70)
    source.needs.note("m", "s1", OPTIONS, 120)
    source.needs.note("m", "s1", OPTIONS, 90)
    assert (await source.ask()).measured_bytes == 120
    assert (await source.ask(options=LoadOptions())).measured_bytes == 0
    source.stamp = "s2"
    assert (await source.ask()).measured_bytes == 0


async def test_what_cannot_be_known_is_not_told_and_may_be_asked_again() -> None:
    source = Source()
    source.may_tell.set()
    source.needs.ask("gone", OPTIONS, source.told.put_nowait)
    await eventually(lambda: source.asked == 1 and not source.needs.is_asking("gone"))
    assert source.told.empty()
    assert (await source.ask()).size == Size(100, 50)
    source.needs.close()
