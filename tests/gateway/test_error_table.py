"""Every row of `docs/errors.md`: its cause is made to happen, and what a client sees over the wire is what it says."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.status import ROWS as GATEWAY_ROWS
from tests.gateway import caller_refusals, load_refusals, memory_refusals, relay_refusals, served_refusals
from tests.gateway.relay_refusals import Cause
from tests.gateway.served_refusals import Caller, write_settings
from tests.gateway.statuses import Seen, failure_of
from tests.support.scripted_worker import relay_under_test
from tests.support.served import Served, served
from worker.failures import ROWS as WORKER_ROWS

TABLE = Path(__file__).parents[2] / "docs" / "errors.md"
PUSHBACK = "grpc-retry-pushback-ms"
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
# What a library must not send again by itself, as all of RESOURCE_EXHAUSTED: it had begun, or the same would follow.
NOT_AGAIN = {"MODEL_LOADING", "WORKER_DIED", "WORKER_STALLED"}
MAX_STATUS_BYTES = 4096


@dataclass(frozen=True)
class Row:
    """One row of the table: the status, the words of its metadata, the other details."""

    code: str
    facts: frozenset[str]
    details: frozenset[str]
    is_built: bool


def rows() -> Mapping[str, Row]:
    """Return the rows of the table by reason."""
    found = re.findall(
        r"^\| ([A-Z_]+) \| ([A-Z_]+) \|[^|]*\|([^|]*)\|([^|]*)\| (yes|later) \|$", TABLE.read_text(), re.MULTILINE
    )
    return {
        reason: Row(
            code,
            frozenset(re.findall(r"[a-z_]+", facts)),
            frozenset(re.findall(r"[A-Za-z]+", details)),
            built == "yes",
        )
        for reason, code, facts, details, built in found
    }


ROWS = rows()
BUILT = sorted(reason for reason, row in ROWS.items() if row.is_built)
QUICK = (relay_refusals, load_refusals, memory_refusals, caller_refusals)
QUICK_CAUSES = [(reason, cause) for module in QUICK for reason, cause in module.CAUSES.items()]
ANSWERED = {row.reason for row in (*GATEWAY_ROWS.values(), *WORKER_ROWS.values()) if row.reason}


def check(reason: str, seen: Seen) -> None:
    """Hold what a client saw against the table."""
    row = ROWS[reason]
    assert (seen.code.name, seen.reason) == (row.code, reason), seen
    assert seen.metadata.keys() <= row.facts, "the table does not say all that comes"
    assert seen.details.keys() - {"ErrorInfo"} == row.details
    assert len(seen.trailers["grpc-status-details-bin"]) < MAX_STATUS_BYTES
    assert seen.message
    assert not re.search(r"/(tmp|home|private|root|usr)/|Traceback|Error\(", f"{seen.message} {seen.metadata}")
    check_advice(reason, seen)


def check_advice(reason: str, seen: Seen) -> None:
    """Hold what is said to client libraries against the code, and RetryInfo against it."""
    told = seen.trailers.get(PUSHBACK)
    assert (told is not None) is (seen.code in PASSING)
    if told is not None:
        assert (told == "-1") is (reason in NOT_AGAIN or seen.code is grpc.StatusCode.RESOURCE_EXHAUSTED)
    retry: Any = seen.details.get("RetryInfo")
    if retry is not None and told not in {None, "-1"}:
        assert retry.retry_delay.ToMilliseconds() == int(str(told)) >= 0


def test_every_reason_that_is_answered_has_a_row_and_a_cause_here() -> None:
    assert set(BUILT) >= ANSWERED
    assert set(BUILT) == {reason for reason, _ in QUICK_CAUSES} | served_refusals.CAUSES.keys()


@pytest.mark.parametrize(("reason", "cause"), QUICK_CAUSES)
async def test_a_refusal_of_the_gateway_is_what_the_table_says(tmp_path: Path, reason: str, cause: Cause) -> None:
    check(reason, await cause(tmp_path))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served("--settings", str(write_settings(tmp_path_factory.mktemp("models")))) as running:
        yield running


@pytest.fixture
async def caller(server: Served) -> AsyncIterator[Caller]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Caller(channel)


@pytest.mark.parametrize("reason", served_refusals.CAUSES)
async def test_a_refusal_of_a_worker_is_what_the_table_says(caller: Caller, reason: str) -> None:
    check(reason, await served_refusals.CAUSES[reason](caller))


async def test_a_deadline_that_passes_says_nothing_but_its_code(tmp_path: Path) -> None:
    seen = await relay_refusals.late(tmp_path)
    assert (seen.code, seen.details) == (grpc.StatusCode.DEADLINE_EXCEEDED, {})


async def test_a_call_that_its_client_cancels_says_nothing_but_its_code(tmp_path: Path) -> None:
    seen = await relay_refusals.gone(tmp_path)
    assert (seen.code, seen.details) == (grpc.StatusCode.CANCELLED, {})


async def test_a_method_that_is_not_there_is_the_librarys_own_status(tmp_path: Path) -> None:
    async with relay_under_test(tmp_path, {}) as relay:
        seen = await failure_of(relay.channel.unary_unary("/pomona.v1.GenerationService/Guess")(b""))
    assert (seen.code, seen.details) == (grpc.StatusCode.UNIMPLEMENTED, {})


async def test_a_message_over_the_librarys_limit_is_its_own_status(caller: Caller) -> None:
    seen = await failure_of(caller.channel.unary_unary("/pomona.v1.GenerationService/Generate")(bytes(17 << 20)))
    assert (seen.code, seen.details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, {})


def test_a_status_that_lacks_its_detail_is_seen() -> None:
    info = Seen(grpc.StatusCode.NOT_FOUND, "none", "MODEL_NOT_FOUND", {}, {}, {"grpc-status-details-bin": b""})
    with pytest.raises(AssertionError):
        check("MODEL_NOT_FOUND", info)
