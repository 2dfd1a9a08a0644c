"""Models that are loaded when the server starts."""

import asyncio

import structlog

from gateway.errors import ModelFailed
from gateway.model_status import Keeping, LoadOptions, ModelStatus
from gateway.preload import preload, wanted_early
from gateway.settings import load_settings
from tests.support.scripted_worker import ScriptedPool
from tests.support.waiting import eventually


class Pool(ScriptedPool):
    """Loads what it is let, in turn."""

    def __init__(self, failing: str = "", stuck: str = "") -> None:
        super().__init__()
        self._failing, self._stuck = failing, stuck

    async def load(
        self,
        model: str,
        options: LoadOptions | None,
        wait: bool,
        *,
        keeping: Keeping | None = None,
        allow_eviction: bool = True,
    ) -> ModelStatus:
        self.loads.append((model, options, wait))
        if model == self._failing:
            raise ModelFailed(model, "SIGKILL")
        if model == self._stuck:
            await asyncio.Event().wait()
        await self.may_load.wait()
        return ModelStatus(model)


def log() -> structlog.typing.FilteringBoundLogger:
    return structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])


def test_they_are_those_of_the_settings_in_their_order() -> None:
    models = [{"name": name, "checkpoint": f"/{name}", "preload": name != "c"} for name in ("z", "c", "a")]
    assert wanted_early(load_settings(None, {"models": models})) == ["z", "a"]


async def test_each_is_loaded_once_the_one_before_is() -> None:
    pool = Pool()
    loading = asyncio.create_task(preload(["z", "a"], pool, log()))
    await eventually(lambda: len(pool.loads) == 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert pool.loads == [("z", None, True)]
    pool.may_load.set()
    await loading
    assert [model for model, _, _ in pool.loads] == ["z", "a"]


async def test_one_that_fails_or_takes_too_long_does_not_keep_the_next_from_it() -> None:
    pool = Pool(failing="a", stuck="b")
    pool.may_load.set()
    await preload(["a", "b", "c"], pool, log(), limit_s=0.05)
    assert [model for model, _, _ in pool.loads] == ["a", "b", "c"]
