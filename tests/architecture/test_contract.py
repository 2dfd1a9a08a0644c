"""The contract, the error table and the baseline agree with each other."""

import re
from pathlib import Path

from pomona.v1 import errors_pb2

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "errors.md"
PREFIX = "ERROR_REASON_"


def reasons_of_table() -> list[str]:
    return re.findall(r"^\| ([A-Z][A-Z_]+) \| [A-Z_]+ \|", TABLE.read_text(), re.MULTILINE)


def test_error_table_and_enum_hold_the_same_reasons_in_the_same_number() -> None:
    names: list[str] = list(errors_pb2.ErrorReason.DESCRIPTOR.values_by_name)
    enum = [name.removeprefix(PREFIX) for name in names if name != f"{PREFIX}UNSPECIFIED"]
    assert sorted(reasons_of_table()) == sorted(enum)


def test_baseline_for_breaking_changes_is_there() -> None:
    assert (ROOT / "protos" / "released.binpb").stat().st_size > 0


def test_reasons_of_the_command_line_are_told_beside_the_table() -> None:
    sources = [file.read_text() for file in (ROOT / "gateway" / "cli").glob("*.py")]
    found = {each for text in sources for each in re.findall(r"reason ?= ?\"([A-Z_]+)\"", text)}
    work = (ROOT / "gateway" / "cli" / "local_work.py").read_text()
    (codes,) = re.findall(r"^CODES = (\{.*?^\})$", work, re.MULTILINE | re.DOTALL)
    found |= set(re.findall(r"\"([A-Z_]+)\":", codes)) | {"NOT_CONNECTED"}
    told = set(re.findall(r"`([A-Z_]+)`", TABLE.read_text()))
    assert found - told - set(reasons_of_table()) == set()
