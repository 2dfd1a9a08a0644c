"""The messages of `google.rpc` that failures carry, as far as they are read here.

They are declared in a pool of their own, by field numbers alone: the client needs no package but grpcio and protobuf,
and a program that has googleapis-common-protos as well meets no second definition. A map is read as the pairs that it
is on the wire.
"""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

STATUS = "Status"
ERROR_INFO = "ErrorInfo"
RETRY_INFO = "RetryInfo"
BAD_REQUEST = "BadRequest"

_PACKAGE = "google.rpc"
_FIELD = descriptor_pb2.FieldDescriptorProto
# Message -> its fields: name, number, type (another message by its name), whether it repeats.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    STATUS: (("code", 1, "int32", False), ("message", 2, "string", False), ("details", 3, "Detail", True)),
    "Detail": (("type_url", 1, "string", False), ("value", 2, "bytes", False)),
    ERROR_INFO: (("reason", 1, "string", False), ("domain", 2, "string", False), ("metadata", 3, "Pair", True)),
    "Pair": (("key", 1, "string", False), ("value", 2, "string", False)),
    RETRY_INFO: (("retry_delay", 1, "Delay", False),),
    "Delay": (("seconds", 1, "int64", False), ("nanos", 2, "int32", False)),
    BAD_REQUEST: (("field_violations", 1, "Violation", True),),
    "Violation": (("field", 1, "string", False), ("description", 2, "string", False)),
}
_TYPES = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def read_details(status: bytes) -> dict[str, Any]:
    """Return the details in the trailer `grpc-status-details-bin` by the names of their messages.

    What is not known or cannot be read is left out: a failure is told all the same.
    """
    found: dict[str, Any] = {}
    envelope = _read(STATUS, status)
    for detail in envelope.details if envelope is not None else ():
        name = detail.type_url.rpartition("/")[2].removeprefix(f"{_PACKAGE}.")
        message = _read(name, detail.value) if name in {ERROR_INFO, RETRY_INFO, BAD_REQUEST} else None
        if message is not None:
            found[name] = message
    return found


def _read(name: str, data: bytes) -> Any:
    message = _classes()[name]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


@cache
def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="pomona/details.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        file.message_type.add(name=name).field.extend(_field(*each) for each in fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _field(name: str, number: int, kind: str, repeats: bool) -> descriptor_pb2.FieldDescriptorProto:
    label = _FIELD.LABEL_REPEATED if repeats else _FIELD.LABEL_OPTIONAL
    if kind in _TYPES:
        return _FIELD(name=name, number=number, label=label, type=_TYPES[kind])
    return _FIELD(name=name, number=number, label=label, type=_FIELD.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{kind}")
