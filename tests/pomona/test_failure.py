"""Failures as the client tells them."""

import ast
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from pomona import PomonaError
from pomona.v1 import common_pb2

ROOT = Path(__file__).parents[2]
KEY = "grpc-status-details-bin"


def status(*details: Message) -> bytes:
    message = status_pb2.Status()
    for detail in details:
        message.details.add().Pack(detail)
    return message.SerializeToString()


def test_details_are_read_without_the_packages_that_define_them() -> None:
    info = error_details_pb2.ErrorInfo(reason="R", domain="pomona", metadata={"a": "1", "b": "2"})
    other = error_details_pb2.ResourceInfo(resource_name="x")
    usage = common_pb2.Usage(prompt_tokens=3)
    trailers = [(KEY, status(other, info)), ("pomona-usage-bin", usage.SerializeToString()), ("x", "y")]
    error = PomonaError(grpc.StatusCode.UNAVAILABLE, "m", trailers)
    assert (error.reason, error.metadata, error.usage) == ("R", {"a": "1", "b": "2"}, usage)
    assert (error.retry_delay_s, error.violations) == (None, {})


@pytest.mark.parametrize("details", [b"", b"\xff", b"not protobuf at all", status()[:-1] + b"\x0a"])
def test_details_that_cannot_be_read_do_not_hide_the_status(details: bytes) -> None:
    error = PomonaError(grpc.StatusCode.INTERNAL, "m", [(KEY, details), ("pomona-usage-bin", b"\xff")])
    assert (error.code, error.reason, error.usage, str(error)) == (grpc.StatusCode.INTERNAL, "", None, "INTERNAL: m")


def test_the_client_imports_nothing_but_grpc_protobuf_and_itself() -> None:
    found: set[str] = set()
    for path in (ROOT / "protos" / "pomona").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    foreign = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name.split(".")[0] != "pomona"} <= {
        "grpc",
        "google.protobuf",
        "google.protobuf.message",
    }


def test_no_second_definition_meets_that_of_googleapis() -> None:
    code = (
        "import grpc, pomona; pomona.PomonaError(grpc.StatusCode.OK, '', [('grpc-status-details-bin', b'x')]); "
        "from google.rpc import error_details_pb2, status_pb2; print('ok')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "ok"
