"""`models` and `show`: what the server can serve, and the state it is in."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, cast

import grpc
import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from pomona.v1 import model_pb2, server_pb2

from gateway.cli import output
from gateway.cli.connection import Connection, ServerOptions, connect, names_server
from gateway.cli.failures import ServerNotReachedError
from gateway.cli.hub_cache import list_cache
from gateway.cli.verb import JsonFlag, verb


@verb
def models(
    *,
    context: typer.Context,
    server: ServerOptions,
    loaded: Annotated[bool, typer.Option("--loaded", help="Only those that are loaded.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Have the server read its settings and the hub's cache again first.")
    ] = False,
    cached: Annotated[bool, typer.Option("--cached", help="Those in the hub's cache of this machine instead.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the models and their states.

    Where no server runs on this machine and none is named, they are those in
    the hub's cache, as with --cached.

    With --json: {"models": [...]}, each a pomona.v1.Model in protobuf's JSON
    form; of the cache {"cached": [...]}, each with "model", "repository",
    "revision", "sizeBytes", "lastUsedTime" and "checkpoint".
    """
    if cached:
        list_cache(as_json=as_json)
        return
    try:
        with connect(server) as connection:
            if refresh:
                _refresh(connection)
            found = list(every_model(connection, loaded_only=loaded))
    except ServerNotReachedError:
        if loaded or refresh or names_server(context):
            raise
        output.notice(f"no server answers at {server.server}; in the hub's cache are:")
        list_cache(as_json=as_json)
        return
    if as_json:
        output.emit({"models": [output.as_dict(model) for model in found]}, indent=2)
    elif found:
        _print(found)
    else:
        output.notice("no models" if not loaded else "no model is loaded")


@verb
def show(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Show all that is known of one model.

    With --json: a pomona.v1.Model in protobuf's JSON form.
    """
    with connect(server) as connection:
        found = connection.models.GetModel(
            model_pb2.GetModelRequest(model=model),
            timeout=connection.query_timeout_s,
            metadata=connection.metadata,
        ).model
        if as_json:
            output.emit(found, indent=2)
        else:
            output.facts((*_facts(found), *_work(_stats(connection, found))))


def state_name(model: model_pb2.Model) -> str:
    """Return the state in lower case: `active`."""
    return output.enum_word(model_pb2.ModelState.Name, model.state, "MODEL_STATE_")


def every_model(connection: Connection, *, loaded_only: bool = False) -> Iterator[model_pb2.Model]:
    """Yield the models that the server lists, page by page."""
    token = ""
    while True:
        page = connection.models.ListModels(
            model_pb2.ListModelsRequest(page_token=token, loaded_only=loaded_only),
            timeout=connection.query_timeout_s,
            metadata=connection.metadata,
        )
        yield from page.models
        token = page.next_page_token
        if not token:
            return


def _refresh(connection: Connection) -> None:
    """Have the server look again, and tell what that changed."""
    request = model_pb2.RefreshCatalogueRequest()
    changes = connection.models.RefreshCatalogue(
        request, timeout=connection.query_timeout_s, metadata=connection.metadata
    )
    for word, names in (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed)):
        if names:
            output.notice(f"{word}: {', '.join(names)}")


def _print(found: Sequence[model_pb2.Model]) -> None:
    headers = ("MODEL", "STATE", "ARCHITECTURE", "QUANTIZATION", "TASKS", "EXPERTS", "MEMORY", "LAST USED")
    has_experts = any(model.HasField("experts") for model in found)
    columns = [index for index, header in enumerate(headers) if has_experts or header != "EXPERTS"]
    rows = [_row(model) for model in found]
    output.table([headers[each] for each in columns], [[row[each] for each in columns] for row in rows])
    for model in found:
        if model.HasField("failure"):
            output.notice(f"{model.model}: {model.failure.reason} {model.failure.message}".strip())


def _row(model: model_pb2.Model) -> tuple[str, ...]:
    memory = model.memory.footprint_bytes
    return (
        model.model,
        state_name(model),
        model.architecture,
        model.quantization,
        _tasks(model),
        _experts(model),
        output.bytes_text(memory) if memory else "",
        _time(model.last_used_time),
    )


def _experts(model: model_pb2.Model) -> str:
    """Return where experts lie, and how much of what is stored of them: of a model that is not loaded, nothing."""
    mode, memory = model.runtime.options.experts_mode, model.memory
    word = output.enum_word(model_pb2.ExpertsMode.Name, mode, "EXPERTS_MODE_")
    held_bytes = memory.expert_slab_bytes or memory.mapped_expert_bytes or memory.resident_expert_bytes
    if not model.HasField("experts"):
        return ""
    part = f"{output.bytes_text(held_bytes)} of {output.bytes_text(model.experts.stored_bytes)}"
    return part if mode == model_pb2.EXPERTS_MODE_UNSPECIFIED else f"{word}, {part}"


def _tasks(model: model_pb2.Model) -> str:
    return ", ".join(output.enum_word(model_pb2.Model.Task.Name, task, "TASK_") for task in model.tasks)


def _time(stamp: Timestamp) -> str:
    if not stamp.seconds:
        return ""
    return stamp.ToDatetime().strftime("%Y-%m-%d %H:%M:%SZ")


def _facts(model: model_pb2.Model) -> Iterator[tuple[str, str]]:
    yield "model", model.model
    yield "display name", model.display_name
    yield "aliases", ", ".join(model.aliases)
    yield "state", state_name(model)
    yield "waiting for", model.waiting_for
    yield "failure", f"{model.failure.reason} {model.failure.message}".strip()
    yield "architecture", model.architecture
    yield "quantization", model.quantization
    yield "revision", model.revision
    yield "tasks", _tasks(model)
    yield "experts", _fields(model.experts)
    yield "last used", _time(model.last_used_time)
    yield "pinned", "yes" if model.pinned else ""
    for title, message in (
        ("limits", model.limits),
        ("runtime", model.runtime),
        ("generation", model.generation),
        ("transcription", model.transcription),
        ("embedding", model.embedding),
        ("sampling", model.default_sampling),
        ("stopping", model.default_stopping),
        ("memory", model.memory),
    ):
        yield title, _fields(message)
    for worker in model.workers:
        yield "worker", _fields(worker)


def _stats(connection: Connection, model: model_pb2.Model) -> server_pb2.ModelStats | None:
    """Return what the worker of a model counts; None where there is none, or a server that cannot tell."""
    if not model.workers:
        return None
    request = server_pb2.GetStatsRequest(models=[model.model])
    try:
        response = connection.server.GetStats(request, timeout=connection.query_timeout_s, metadata=connection.metadata)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise
    return next(iter(response.models), None)


def _work(stats: server_pb2.ModelStats | None) -> Iterator[tuple[str, str]]:
    if stats is None:
        return
    yield "requests", f"{stats.running_requests} running, {stats.queued_requests} queued"
    yield "tokens/s", f"{stats.prefill_tokens_per_second:.0f} prompt, {stats.decode_tokens_per_second:.0f} output"
    yield "cache", f"{stats.used_cache_tokens} of {stats.total_cache_tokens} tokens in use"
    if stats.cached_prompt_tokens_total:
        found = f"{stats.cached_prompt_tokens_total} of {stats.prompt_tokens_total} prompt tokens found"
        yield "prefix cache", f"{found}, {stats.evictions_total} blocks evicted"
    if stats.memory.expert_slab_bytes:
        read = (
            f"{output.bytes_text(stats.expert_bytes_read_total)} read, {stats.expert_stall_us_total / 1e6:.1f} s waited"
        )
        yield "experts needed", f"{stats.expert_hit_ratio:.1%} lay in memory, {read}"
    if stats.drafted_tokens_total:
        yield "speculation", f"{stats.accepted_draft_tokens_total} of {stats.drafted_tokens_total} guesses right"


def _fields(message: Message) -> str:
    """Return the fields that are set, one a line."""
    return "\n".join(f"{_title(field.name)} {_field_value(field, value)}" for field, value in message.ListFields())


def _field_value(field: FieldDescriptor, value: object) -> str:
    if field.enum_type is None or not isinstance(value, int):
        return _value(field.name, value)
    known = field.enum_type.values_by_number.get(value)
    return str(value) if known is None else known.name.removeprefix(f"{field.name.upper()}_").lower()


def _title(name: str) -> str:
    """Return a field's name in words, without the unit that its value is shown in."""
    return name.removesuffix("_bytes").replace("_", " ")


def _value(name: str, value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_bytes"):
            return output.bytes_text(value)
        case float():
            return f"{value:g}"
        case Message():
            return _message(value)
        case str() | int():
            return str(value)
        case _:
            return _several(value)


def _several(value: object) -> str:
    """Return what a map or a repeated field holds."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return "; ".join(f"{_title(str(key))}: {each}" for key, each in pairs)
    return ", ".join(str(each) for each in cast("Iterable[object]", value))


def _message(value: Message) -> str:
    if isinstance(value, Timestamp):
        return _time(value)
    if isinstance(value, Duration):
        return f"{value.ToTimedelta().total_seconds():g} s"
    return _fields(value).replace("\n", " ")
