"""Headers of safetensors files: what is true is read, what lies is refused."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.safetensors import MAX_HEADER_BYTES, SafetensorsHeader, read_safetensors_header
from tests.models.checkpoint.fuzzing import Patches, patched, patches, refusal_of

GOOD: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "U8", "shape": [4], "data_offsets": [24, 28]},
}


def write(path: Path, header: object, data_bytes: int = 28) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(data_bytes))
    return path


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {"x": np.ones((3, 5), np.float16), "empty": np.zeros((0, 4), np.int32), "scalar": np.array(1, np.float32)}
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    header = read_safetensors_header(tmp_path / "a.safetensors")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()} == {
        "x": ("F16", (3, 5)),
        "empty": ("I32", (0, 4)),
        "scalar": ("F32", ()),
    }
    stored = header.tensors["x"]
    content = (tmp_path / "a.safetensors").read_bytes()
    assert content[stored.offset : stored.offset + stored.nbytes] == tensors["x"].tobytes()


def test_names_the_tensor_whose_data_lies_outside(tmp_path: Path) -> None:
    header = {**GOOD, "b": {"dtype": "U8", "shape": [400], "data_offsets": [24, 424]}}
    with pytest.raises(CheckpointCorrupt) as caught:
        read_safetensors_header(write(tmp_path / "m.safetensors", header))
    assert (caught.value.file, caught.value.key) == ("m.safetensors", "b")


@pytest.mark.parametrize("cut", [1, 4, 27, 28, 60, 200])
def test_refuses_a_truncated_file(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "m.safetensors", GOOD)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointCorrupt):
        read_safetensors_header(path)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_refuses_a_file_without_a_length(tmp_path: Path, length: int) -> None:
    (tmp_path / "m.safetensors").write_bytes(bytes(length))
    with pytest.raises(CheckpointCorrupt):
        read_safetensors_header(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("gap", {"dtype": "U8", "shape": [3], "data_offsets": [25, 28]}),
        ("overlap", {"dtype": "U8", "shape": [5], "data_offsets": [23, 28]}),
        ("short of the end", {"dtype": "U8", "shape": [3], "data_offsets": [24, 27]}),
        ("backwards", {"dtype": "U8", "shape": [4], "data_offsets": [28, 24]}),
        ("negative", {"dtype": "U8", "shape": [-4], "data_offsets": [24, 28]}),
        ("shape and range differ", {"dtype": "U16", "shape": [4], "data_offsets": [24, 28]}),
        ("float in the shape", {"dtype": "U8", "shape": [4.0], "data_offsets": [24, 28]}),
        ("boolean in the shape", {"dtype": "U8", "shape": [4, True], "data_offsets": [24, 28]}),
        ("overflow", {"dtype": "U8", "shape": [1 << 62, 1 << 62, 4], "data_offsets": [24, 28]}),
        ("three offsets", {"dtype": "U8", "shape": [4], "data_offsets": [24, 28, 28]}),
        ("many dimensions", {"dtype": "U8", "shape": [4] + [1] * 20, "data_offsets": [24, 28]}),
        ("no dtype", {"shape": [4], "data_offsets": [24, 28]}),
        ("no shape", {"dtype": "U8", "data_offsets": [24, 28]}),
        ("no offsets", {"dtype": "U8", "shape": [4]}),
        ("no object", [1, 2]),
    ],
)
def test_refuses_an_entry_that_contradicts_itself(tmp_path: Path, name: str, entry: object) -> None:
    with pytest.raises(CheckpointCorrupt):
        read_safetensors_header(write(tmp_path / "m.safetensors", {"a": GOOD["a"], name: entry}))


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":1,"a":2}',
        b'{"a":{"dtype":"U8","dtype":"U8","shape":[28],"data_offsets":[0,28]}}',
        b"[]",
        b"{",
        b'{"\xff":1}',
        b'{"a":' + b"[" * 100_000,
        b" {}",
    ],
)
def test_refuses_a_header_that_is_no_clean_json_object(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(CheckpointCorrupt):
        read_safetensors_header(write(tmp_path / "m.safetensors", header))


def test_refuses_a_header_over_the_limit_before_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(CheckpointCorrupt, match="header over"):
        read_safetensors_header(path)


def test_refuses_an_unknown_dtype_by_name(tmp_path: Path) -> None:
    header = {"a": {"dtype": "Q3_K", "shape": [28], "data_offsets": [0, 28]}}
    with pytest.raises(CheckpointRejected, match="Q3_K"):
        read_safetensors_header(write(tmp_path / "m.safetensors", header))


def test_does_not_wait_on_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(CheckpointRejected, match="regular"):
        read_safetensors_header(tmp_path / "m.safetensors")


def test_says_that_a_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing) as caught:
        read_safetensors_header(tmp_path / "m.safetensors")
    assert str(caught.value) == "m.safetensors: is not there"


def test_the_digest_follows_the_header(tmp_path: Path) -> None:
    first = read_safetensors_header(write(tmp_path / "a", GOOD))
    second = read_safetensors_header(write(tmp_path / "b", {**GOOD, "__metadata__": {"format": "mlx"}}))
    assert first.digest != second.digest


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patches(st.integers(0, 200)), st.integers(0, 50))
def test_mutated_bytes_give_a_header_or_a_checkpoint_error(tmp_path: Path, changes: Patches, cut: int) -> None:
    path = write(tmp_path / "m.safetensors", GOOD)
    content = patched(path.read_bytes(), changes)
    path.write_bytes(content[: len(content) - cut])
    read: list[SafetensorsHeader] = []
    error = refusal_of(lambda: read.append(read_safetensors_header(path)))
    assert error is not None or sum(tensor.nbytes for tensor in read[0].tensors.values()) <= path.stat().st_size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=4),
        JSON | st.fixed_dictionaries({"dtype": st.sampled_from(["U8", "F32", 1]), "shape": JSON, "data_offsets": JSON}),
        max_size=4,
    )
)
def test_any_json_gives_a_header_or_a_checkpoint_error(tmp_path: Path, header: dict[str, Any]) -> None:
    error = refusal_of(lambda: read_safetensors_header(write(tmp_path / "m.safetensors", header)))
    assert error is None or str(tmp_path) not in str(error)
