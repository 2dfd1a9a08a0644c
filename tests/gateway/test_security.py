"""Who gets into the whole gateway, what each may do, and what each gets to see."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from pomona.v1 import generation_pb2, model_pb2, server_pb2

from gateway.address import ListenError
from gateway.principal import SCOPES
from gateway.scopes import scope_of
from gateway.server import Gateway
from gateway.settings import SettingsError, load_settings
from gateway.token_file import new_token
from tests.gateway.callers import bearer, grant, in_the_past, revoke
from tests.gateway.guarded import EXEMPT, LIMIT_S, METHODS, Guarded, built_methods, guarded, settings_for
from tests.gateway.scraping import get
from tests.gateway.statuses import failure_of, seen
from tests.support.scripted import STREAM_GENERATE, fake_worker_command

Code = grpc.StatusCode
LIST_MODELS = "/pomona.v1.ModelService/ListModels"
WATCH_MODELS = "/pomona.v1.ModelService/WatchModels"
LIST_REQUESTS = "/pomona.v1.AdminService/ListRequests"
CANCEL_REQUEST = "/pomona.v1.AdminService/CancelRequest"
STREAM_LOGS = "/pomona.v1.AdminService/StreamLogs"
GET_STATS = "/pomona.v1.ServerService/GetStats"
HEALTH_LIST = "/grpc.health.v1.Health/List"
DELTA = generation_pb2.StreamGenerateResponse(started=generation_pb2.GenerationStarted(prompt_tokens=3))
HELD = [
    {"read": 1},
    {"metadata": {"x-pomona-begun": "1"}},
    {"send": DELTA.SerializeToString().hex()},
    {"hang": True},
]
HOLDING = {"methods": {STREAM_GENERATE: HELD}}


def asking(model: str = "model-a", request_id: str = "r") -> Any:
    return generation_pb2.StreamGenerateRequest(model=model, request_id=request_id)


async def begun(server: Guarded, metadata: Any, message: Any = None) -> Any:
    """Begin a stream that its worker holds, and return it with its first answer read."""
    call = server.call(STREAM_GENERATE, message or asking(), metadata)
    assert await anext(aiter(call)) == DELTA
    return call


async def is_let_in(server: Guarded, message: Any, metadata: Any) -> bool:
    """Say whether a stream begins, or its caller is refused."""
    try:
        (await begun(server, metadata, message)).cancel()
    except grpc.aio.AioRpcError:
        await asyncio.sleep(0.02)
        return False
    return True


async def test_every_rpc_wants_credentials_but_the_check_of_health(tmp_path: Path) -> None:
    everything = grant(tmp_path / "tokens.json", "root")
    async with guarded(settings_for(tmp_path)) as server:
        built = await built_methods(server, everything)
        assert {LIST_MODELS, STREAM_GENERATE, LIST_REQUESTS, EXEMPT} <= set(built)
        for method in built:
            if method == EXEMPT:
                assert (await server.answer(method)).status == health_pb2.HealthCheckResponse.SERVING
                continue
            for metadata, reason in (((), "CREDENTIALS_MISSING"), (bearer("nobodys"), "CREDENTIALS_INVALID")):
                refusal = await server.refusal(method, metadata=metadata)
                assert (refusal.code, refusal.reason) == (Code.UNAUTHENTICATED, reason), method
                assert refusal.metadata == {}


async def test_nothing_of_a_request_is_read_before_its_caller_is_known(tmp_path: Path) -> None:
    known = grant(tmp_path / "tokens.json", "root")

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with guarded(settings_for(tmp_path)) as server:
        for method in (LIST_MODELS, STREAM_GENERATE, WATCH_MODELS):
            call: Any = server.channel.stream_stream(method)(silent(), timeout=LIMIT_S)
            assert (await failure_of(call)).reason == "CREDENTIALS_MISSING"
        nothing: Any = server.channel.stream_stream(LIST_MODELS)(no_messages(), metadata=known, timeout=LIMIT_S)
        assert (await failure_of(nothing)).reason == "MALFORMED_REQUEST"


async def no_messages() -> AsyncIterator[bytes]:
    for message in ():
        yield message


async def test_every_rpc_wants_its_scope(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    everything = grant(path, "root")
    without = {
        scope: grant(path, f"no-{scope}", [one for one in SCOPES if one not in {scope, "admin"}]) for scope in SCOPES
    }
    async with guarded(settings_for(tmp_path)) as server:
        for method in await built_methods(server, everything):
            scope = scope_of(method)
            if scope and method != EXEMPT:
                refusal = await server.refusal(method, metadata=without[scope])
                assert (refusal.code, refusal.reason) == (Code.PERMISSION_DENIED, "SCOPE_MISSING"), method
                assert refusal.metadata == {"scope": scope}


async def test_a_model_of_others_is_forbidden_in_every_rpc_whether_it_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    mine = grant(tmp_path / "tokens.json", "mine", models=("model-a", "mine/*"))
    async with guarded(settings_for(tmp_path, hub_models=True)) as server:
        looked = 0
        for method in await built_methods(server, mine):
            fields = METHODS[method].input_type.fields_by_name
            for field in sorted({"model", "models", "repository"} & set(fields)):
                for name in ("secret/model-b", "not/there", *([] if field == "repository" else ["alias-b"])):
                    message: Any = GetMessageClass(METHODS[method].input_type)()
                    if field == "models":
                        message.models.append(name)
                    else:
                        setattr(message, field, name)
                    if "repository" in fields:  # both its names have to be the caller's
                        setattr(message, {"model": "repository"}.get(field, "model"), "mine/one")
                    refusal = await server.refusal(method, message, mine)
                    assert (refusal.code, refusal.reason) == (Code.PERMISSION_DENIED, "MODEL_FORBIDDEN"), method
                    assert refusal.metadata == {"model": name}
                    assert set(refusal.details) == {"ErrorInfo", "ResourceInfo"}
                    looked += 1
        assert looked >= 3 * 15


async def test_what_a_caller_may_not_use_it_does_not_see(tmp_path: Path) -> None:
    mine = grant(tmp_path / "tokens.json", "mine", models=("alias-a",))
    async with guarded(settings_for(tmp_path)) as server:
        listed = await server.answer(LIST_MODELS, metadata=mine)
        assert [model.model for model in listed.models] == ["model-a"]

        watching = server.call(WATCH_MODELS, metadata=mine)
        shown = [await anext(aiter(watching)) for _ in range(2)]
        assert (shown[0].updated.model, shown[1].HasField("snapshot_complete")) == ("model-a", True)
        watching.cancel()

        health = await server.answer(HEALTH_LIST, metadata=mine)
        assert "model-a" in health.statuses
        assert "secret/model-b" not in health.statuses

        missing = await server.refusal(LIST_REQUESTS, server_pb2.ListRequestsRequest(model="alias-a-not"), mine)
        assert missing.reason == "MODEL_FORBIDDEN"


async def test_not_found_names_only_what_the_caller_may_use(tmp_path: Path) -> None:
    mine = grant(tmp_path / "tokens.json", "mine", models=("model-a", "model-c"))
    async with guarded(settings_for(tmp_path)) as server:
        for method in (STREAM_GENERATE, "/pomona.v1.ModelService/GetModel"):
            message: Any = GetMessageClass(METHODS[method].input_type)(model="model-c")
            refusal = await server.refusal(method, message, mine)
            assert (refusal.reason, refusal.metadata["models"]) == ("MODEL_NOT_FOUND", "model-a")


async def test_changes_of_hidden_models_are_not_told(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    mine, everything = grant(path, "mine", models=("model-a",)), grant(path, "root")
    admin_a = grant(path, "admin-a", ("admin",), models=("model-a",))
    async with guarded(settings_for(tmp_path)) as server:
        watching = server.call(WATCH_MODELS, metadata=mine)
        events = aiter(watching)
        for _ in range(2):
            await anext(events)
        load = "/pomona.v1.ModelService/LoadModel"
        await server.answer(load, model_pb2.LoadModelRequest(model="secret/model-b"), everything)
        await server.answer(load, model_pb2.LoadModelRequest(model="model-a"), everything)
        assert (await anext(events)).updated.model == "model-a"
        stats = await server.answer(GET_STATS, metadata=mine)
        assert [one.model for one in stats.models] in ([], ["model-a"])
        lines = server.call(STREAM_LOGS, server_pb2.StreamLogsRequest(past_lines=500), admin_a)
        assert {line.model async for line in lines} == {"model-a"}
        watching.cancel()


async def test_health_without_a_token_tells_nothing_of_models(tmp_path: Path) -> None:
    mine = grant(tmp_path / "tokens.json", "mine", models=("model-a",))
    async with guarded(settings_for(tmp_path)) as server:
        for name in ("model-a", "not-there"):
            request = health_pb2.HealthCheckRequest(service=name)
            assert (await server.refusal(EXEMPT, request)).reason == "CREDENTIALS_MISSING"
            unknown = bearer(new_token().text)
            assert (await server.refusal(EXEMPT, request, unknown)).reason == "CREDENTIALS_INVALID"
        known = await server.answer(EXEMPT, health_pb2.HealthCheckRequest(service="model-a"), mine)
        assert known.status == health_pb2.HealthCheckResponse.SERVING


async def test_requests_are_their_callers_own_unless_an_administrator_asks(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    ann, bob = grant(path, "ann", ("generate",)), grant(path, "bob", ("generate",))
    admin, admin_b = grant(path, "admin", ("admin",)), grant(path, "admin-b", ("admin",), models=("alias-b",))
    async with guarded(settings_for(tmp_path, script=HOLDING)) as server:
        calls = [await begun(server, ann), await begun(server, bob)]  # of the same id

        async def seen_by(metadata: Any) -> list[str]:
            return sorted(one.principal for one in (await server.answer(LIST_REQUESTS, metadata=metadata)).requests)

        assert await seen_by(ann) == ["ann"]
        assert await seen_by(admin) == ["ann", "bob"]
        assert await seen_by(admin_b) == []
        twice = await server.refusal(STREAM_GENERATE, asking(), ann)
        assert twice.reason == "DUPLICATE_REQUEST_ID"

        cancel = server_pb2.CancelRequestRequest(request_id="r")
        finished = server_pb2.CancelRequestResponse.OUTCOME_ALREADY_FINISHED
        assert (await server.answer(CANCEL_REQUEST, cancel, admin_b)).outcome == finished
        await server.answer(CANCEL_REQUEST, cancel, ann)
        assert (await failure_of(calls[0])).reason == "CANCELLED_BY_OPERATOR"
        assert await seen_by(admin) == ["bob"]
        await server.answer(CANCEL_REQUEST, cancel, admin)
        assert (await failure_of(calls[1])).reason == "CANCELLED_BY_OPERATOR"


async def test_the_worker_is_told_who_calls_and_in_which_group(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    ann, bob = grant(path, "ann", ("generate",), group="team"), grant(path, "bob", ("generate",))
    forged = (("x-pomona-group", "team"), ("x-pomona-principal", "ann"))
    told: list[dict[str, str]] = []
    async with guarded(settings_for(tmp_path, script={"methods": {STREAM_GENERATE: [{"reflect": True}]}})) as server:
        for metadata in (ann, (*bob, *forged)):
            stub: Any = server.channel.unary_stream(STREAM_GENERATE)
            told += [json.loads(body) async for body in stub(asking().SerializeToString(), metadata=metadata)]
    assert [(one["x-pomona-principal"], one["x-pomona-group"]) for one in told] == [("ann", "team"), ("bob", "bob")]
    assert not any("authorization" in one for one in told)


async def test_a_caller_over_its_rate_is_told_when_to_come_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    slow, other = grant(path, "slow", rate_per_minute=2), grant(path, "other")
    async with guarded(settings_for(tmp_path)) as server:
        for _ in range(2):
            await server.answer(LIST_MODELS, metadata=slow)
        refusal = await server.refusal(LIST_MODELS, metadata=slow)
        assert (refusal.code, refusal.reason) == (Code.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert refusal.metadata == {"limit": "rate", "most": "2"}
        assert set(refusal.details) == {"ErrorInfo", "QuotaFailure", "RetryInfo"}
        retry: Any = refusal.details["RetryInfo"]
        assert 20 < retry.retry_delay.ToTimedelta().total_seconds() <= 30
        assert int(refusal.trailers["grpc-retry-pushback-ms"]) == -1  # a library is not to try again by itself
        await server.answer(EXEMPT, metadata=slow)  # health checks are not counted
        await server.answer(LIST_MODELS, metadata=other)


async def test_a_caller_has_so_many_calls_open_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    narrow = grant(path, "narrow", streams=2)
    async with guarded(settings_for(tmp_path, script=HOLDING)) as server:
        first = await begun(server, narrow, asking(request_id="1"))
        watching = server.call(WATCH_MODELS, metadata=narrow)
        await anext(aiter(watching))
        refusal = await server.refusal(STREAM_GENERATE, asking(request_id="2"), narrow)
        assert (refusal.reason, refusal.metadata) == ("RATE_LIMITED", {"limit": "streams", "most": "2"})
        await server.answer(LIST_MODELS, metadata=narrow)  # a short question is none of them
        first.cancel()
        watching.cancel()
        async with asyncio.timeout(10):
            while not await is_let_in(server, asking(request_id="3"), narrow):
                pass


async def test_an_expired_token_says_so(tmp_path: Path) -> None:
    old = grant(tmp_path / "tokens.json", "old", expires=in_the_past())
    async with guarded(settings_for(tmp_path)) as server:
        refusal = await server.refusal(LIST_MODELS, metadata=old)
        assert (refusal.code, refusal.reason) == (Code.UNAUTHENTICATED, "CREDENTIALS_EXPIRED")


async def test_a_revoked_token_ends_what_runs_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    gone, stays = grant(path, "gone"), grant(path, "stays")
    async with guarded(settings_for(tmp_path, script=HOLDING)) as server:
        kept = await begun(server, stays)
        ended = [await begun(server, gone), server.call(WATCH_MODELS, metadata=gone)]
        await anext(aiter(ended[1]))
        revoke(path, "gone")
        again = grant(path, "gone")  # a new token of the same name
        await server.gateway.reload()
        new = await begun(server, again, asking(request_id="new"))
        for call in ended:
            refusal = await failure_of(call)
            assert (refusal.code, refusal.reason) == (Code.UNAUTHENTICATED, "CREDENTIALS_INVALID")
        assert (await server.refusal(LIST_MODELS, metadata=gone)).reason == "CREDENTIALS_INVALID"
        await server.gateway.reload()
        assert not kept.done()
        assert not new.done()
        for call in (kept, new):
            call.cancel()


async def test_a_new_token_holds_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    grant(path, "first")
    async with guarded(settings_for(tmp_path, script=HOLDING)) as server:
        second = grant(path, "second")

        async with asyncio.timeout(10):
            while not await is_let_in(server, asking(), second):
                pass


async def test_refused_calls_are_logged_without_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    admin = grant(path, "admin")
    ((_, weak),) = narrow = grant(path, "narrow", ("embed",))
    async with guarded(settings_for(tmp_path)) as server:
        await server.refusal(LIST_MODELS, metadata=bearer("canary-token"))
        await server.refusal(LIST_MODELS, metadata=narrow)
        call = server.call(STREAM_LOGS, server_pb2.StreamLogsRequest(past_lines=100), admin)
        lines = [line async for line in call]
    refused = [dict(line.fields) for line in lines if line.message == "call refused"]
    assert [(one["reason"], one["caller"]) for one in refused] == [
        ("CREDENTIALS_INVALID", ""),
        ("SCOPE_MISSING", "narrow"),
    ]
    assert "canary" not in str(lines)
    assert weak.rpartition("_")[2] not in str(lines)


@pytest.mark.parametrize("what", ["tokens", "tls_cert"])
def test_files_that_are_not_there_keep_the_server_from_starting(tmp_path: Path, what: str) -> None:
    told = {"tokens": str(tmp_path / "none")} if what == "tokens" else {"tls_cert": "/none", "tls_key": "/none"}
    with pytest.raises(SettingsError, match="cannot be read"):
        Gateway(load_settings(None, {"listen": "127.0.0.1:0", "security": told}), fake_worker_command().argv)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_are_not_let_in_by_accident(tmp_path: Path, listen: str) -> None:
    grant(tmp_path / "tokens.json", "ci")
    for told in ({}, {"tokens": str(tmp_path / "tokens.json")}):
        with pytest.raises(ListenError, match="--allow-plaintext"):
            Gateway(load_settings(None, {"listen": listen, "security": told}), fake_worker_command().argv)


async def test_in_the_clear_for_other_machines_is_said_in_the_log(tmp_path: Path) -> None:
    told = {"listen": "0.0.0.0:0", "security": {"allow_plaintext": True}}
    gateway = Gateway(load_settings(None, told), fake_worker_command().argv)
    try:
        address = await gateway.start()
        async with grpc.aio.insecure_channel(address.replace("0.0.0.0", "127.0.0.1")) as channel:
            lines = Guarded(tmp_path, gateway, channel, address).call(STREAM_LOGS, server_pb2.StreamLogsRequest())
            said = [line.message async for line in lines]
    finally:
        await gateway.stop()
    assert "other machines reach this server in the clear" in said
    assert "other machines may do everything here without a token" in said


async def test_a_clients_certificate_stands_for_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    grant(path, "mac", ("models.read",), sha256=None, certificate="mac.example")
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    (tmp_path / "server.pem").write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
    (tmp_path / "server.key").write_bytes(made.private_key_pem.bytes())
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    told = {"tls_cert": "server.pem", "tls_key": "server.key", "client_ca": "ca.pem"}
    settings = settings_for(tmp_path, security={name: str(tmp_path / file) for name, file in told.items()})
    async with guarded(settings) as server:
        port = server.address.rpartition(":")[2]

        async def reason_for(name: str) -> str:
            mine = authority.issue_cert(name)
            key, chain = mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes()
            credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
                shown = Guarded(path, server.gateway, channel, server.address)
                listed = await shown.answer(LIST_MODELS)
                assert [model.model for model in listed.models] == ["model-a", "secret/model-b"]
                return (await shown.refusal(STREAM_GENERATE, asking())).reason

        assert await reason_for("mac.example") == "SCOPE_MISSING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reason_for("other.example")
        assert seen(caught.value).reason == "CREDENTIALS_MISSING"


async def test_refused_calls_are_counted_by_their_reasons(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    narrow, slow = grant(path, "narrow", ("embed",)), grant(path, "slow", rate_per_minute=1)
    one_stream = grant(path, "one", streams=1)
    async with guarded(settings_for(tmp_path, metrics={"listen": "127.0.0.1:0"})) as server:
        await server.answer(LIST_MODELS, metadata=slow)
        watching = server.call(WATCH_MODELS, metadata=one_stream)
        await anext(aiter(watching))
        expected = {"CREDENTIALS_MISSING": 3, "SCOPE_MISSING": 1, "RATE_LIMITED": 1}
        for method, metadata in ((LIST_MODELS, ()),) * 3 + ((LIST_MODELS, narrow), (LIST_MODELS, slow)):
            await server.refusal(method, metadata=metadata)
        await server.refusal(WATCH_MODELS, metadata=one_stream)
        page = await get(server.gateway.journal.observation.metrics_address)
        watching.cancel()
    for reason, count in expected.items():
        labels = {"method": LIST_MODELS[1:], "model": "", "reason": reason}
        assert page.value("pomona_requests_total", **labels) == count
    assert page.value("pomona_requests_total", method=WATCH_MODELS[1:], reason="RATE_LIMITED") == 1
