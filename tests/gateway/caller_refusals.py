"""One true cause for each reason of a caller who may not, over a real channel to a server that wants tokens."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pomona.v1 import generation_pb2, model_pb2

from tests.gateway.callers import bearer, grant
from tests.gateway.guarded import guarded, settings_for
from tests.gateway.statuses import Seen
from tests.support.scripted import GENERATE

Cause = Callable[[Path], Awaitable[Seen]]
ALL = ("generate", "models.read")
LIST = "/pomona.v1.ModelService/ListModels"
ASKED = generation_pb2.GenerateRequest(model="secret/model-b")
LISTED = model_pb2.ListModelsRequest()


async def refused(
    folder: Path, method: str, message: Any, scopes: Sequence[str] = ALL, calls: int = 1, **facts: Any
) -> Seen:
    """Return how the last of so many calls fails, of a caller whose token has these scopes and facts."""
    metadata = grant(folder / "tokens.json", "ann", scopes, **facts)
    async with guarded(settings_for(folder)) as server:
        for _ in range(calls - 1):
            await server.answer(method, message, metadata)
        return await server.refusal(method, message, metadata)


async def without_a_token(folder: Path) -> Seen:
    """Show no token."""
    grant(folder / "tokens.json", "ann")
    async with guarded(settings_for(folder)) as server:
        return await server.refusal(LIST, LISTED)


async def with_a_wrong_one(folder: Path) -> Seen:
    """Show a token that nobody gave."""
    grant(folder / "tokens.json", "ann")
    async with guarded(settings_for(folder)) as server:
        return await server.refusal(LIST, LISTED, bearer("pomona_0123456789abcdef_" + "x" * 43))


def yesterday() -> datetime:
    """Return a time that is over."""
    return datetime.now(UTC) - timedelta(days=1)


CAUSES: Mapping[str, Cause] = {
    "CREDENTIALS_MISSING": without_a_token,
    "CREDENTIALS_INVALID": with_a_wrong_one,
    "CREDENTIALS_EXPIRED": lambda folder: refused(folder, LIST, LISTED, expires=yesterday()),
    "SCOPE_MISSING": partial(refused, method=GENERATE, message=ASKED, scopes=("models.read",)),
    "MODEL_FORBIDDEN": partial(refused, method=GENERATE, message=ASKED, models=("model-*",)),
    "RATE_LIMITED": partial(refused, method=LIST, message=LISTED, calls=2, rate_per_minute=1),
}
