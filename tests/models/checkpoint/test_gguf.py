"""Headers of GGUF files: what is true is read, what lies is refused before any other reader sees it."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected
from models.checkpoint.gguf import MAX_STRING_BYTES, read_gguf_header
from tests.models.checkpoint.fuzzing import Patches, patched, patches, refusal_of
from tests.support.tiny_checkpoints import GGUF_TYPES, llama_config, write_gguf, write_llama_gguf

METADATA: dict[str, Any] = {"general.architecture": "llama", "n": 7, "x": 0.5, "flag": True, "words": ["a", "é"]}
TINY = llama_config(num_hidden_layers=1)
TENSORS = {
    "a": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": ("Q8_0", np.ones((4, 64), np.float32)),
    "c": ("Q4_0", np.ones(32, np.float32)),
}


def edited(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def test_reads_metadata_of_every_kind(tmp_path: Path) -> None:
    metadata = {**METADATA, "numbers": np.array([1, -2], np.int32)}
    header = read_gguf_header(write_gguf(tmp_path / "m.gguf", metadata, {}))
    assert {key: header.metadata[key] for key in METADATA} == METADATA
    numbers = header.metadata["numbers"]
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1, -2]


@pytest.mark.parametrize("version", [2, 3])
def test_places_every_tensor(tmp_path: Path, version: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS, version=version)
    tensors = read_gguf_header(path).tensors
    assert {name: (tensor.type, tensor.shape, tensor.nbytes) for name, tensor in tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("Q8_0", (4, 64), 4 * 2 * 34),
        "c": ("Q4_0", (32,), 18),
    }
    content = path.read_bytes()
    assert content[tensors["a"].offset : tensors["a"].offset + 24] == TENSORS["a"][1].tobytes()


def test_honours_another_alignment(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": 256}, TENSORS)
    assert all(tensor.offset % 256 == 0 for tensor in read_gguf_header(path).tensors.values())


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_refuses_another_version_or_byte_order(tmp_path: Path, version: int) -> None:
    with pytest.raises(CheckpointRejected, match="version"):
        read_gguf_header(write_gguf(tmp_path / "m.gguf", {}, {}, version=version))


def test_refuses_what_is_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(CheckpointCorrupt, match="no GGUF file"):
        read_gguf_header(tmp_path / "m.gguf")


def test_says_that_a_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing):
        read_gguf_header(tmp_path / "m.gguf")


def test_refuses_every_truncation_of_the_header_and_the_data(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    content = path.read_bytes()
    last = max(tensor.offset + tensor.nbytes for tensor in read_gguf_header(path).tensors.values())
    for length in range(last):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointCorrupt):
            read_gguf_header(path)


@pytest.mark.parametrize("position", [8, 16])
@pytest.mark.parametrize("count", [1 << 63, 1 << 40, 10_000])
def test_refuses_counts_that_the_file_cannot_hold(tmp_path: Path, position: int, count: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    content = bytearray(path.read_bytes())
    content[position : position + 8] = struct.pack("<Q", count)
    path.write_bytes(content)
    with pytest.raises(CheckpointCorrupt):
        read_gguf_header(path)


@pytest.mark.parametrize("length", [MAX_STRING_BYTES + 1, 1 << 63, 5000])
def test_refuses_a_string_longer_than_the_file_or_the_limit(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": "needle"}, {})
    edited(path, struct.pack("<Q", 6) + b"needle", struct.pack("<Q", length) + b"needle")
    with pytest.raises(CheckpointCorrupt):
        read_gguf_header(path)


@pytest.mark.parametrize("kind", [4, 8, 12])
def test_refuses_an_array_longer_than_the_file(tmp_path: Path, kind: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": ["needle"]}, {})
    edited(path, struct.pack("<IIQ", 9, 8, 1), struct.pack("<IIQ", 9, kind, 1 << 61))
    with pytest.raises(CheckpointCorrupt):
        read_gguf_header(path)


@pytest.mark.parametrize(("kind", "error"), [(9, CheckpointRejected), (13, CheckpointCorrupt)])
def test_refuses_arrays_of_arrays_and_of_unknown_things(
    tmp_path: Path, kind: int, error: type[CheckpointError]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"k": ["needle"]}, {})
    edited(path, struct.pack("<IIQ", 9, 8, 1), struct.pack("<IIQ", 9, kind, 1))
    with pytest.raises(error) as caught:
        read_gguf_header(path)
    assert caught.value.key == "k"


def test_refuses_text_that_is_not_utf8_and_flags_that_are_neither(tmp_path: Path) -> None:
    edited(write_gguf(tmp_path / "a.gguf", {"k": "needle"}, {}), b"needle", b"need\xff\xfe")
    edited(write_gguf(tmp_path / "b.gguf", {"k": True}, {}), struct.pack("<I?", 7, True), struct.pack("<IB", 7, 2))
    for name in ("a.gguf", "b.gguf"):
        with pytest.raises(CheckpointCorrupt):
            read_gguf_header(tmp_path / name)


def test_refuses_a_name_that_is_there_twice(tmp_path: Path) -> None:
    edited(write_gguf(tmp_path / "a.gguf", {"needle": 1, "noodle": 2}, {}), b"noodle", b"needle")
    tensors = {"needle": TENSORS["a"], "noodle": TENSORS["a"]}
    edited(write_gguf(tmp_path / "b.gguf", {}, tensors), b"noodle", b"needle")
    for name in ("a.gguf", "b.gguf"):
        with pytest.raises(CheckpointCorrupt, match=r"needle: (is there|is described) twice"):
            read_gguf_header(tmp_path / name)


@pytest.mark.parametrize("alignment", [0, 3, 24, 1 << 31])
def test_refuses_an_alignment_that_is_none(tmp_path: Path, alignment: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": 32}, TENSORS)
    value = b"general.alignment" + struct.pack("<I", 4)
    edited(path, value + struct.pack("<I", 32), value + struct.pack("<I", alignment))
    with pytest.raises(CheckpointCorrupt, match=r"general\.alignment"):
        read_gguf_header(path)


def test_refuses_an_alignment_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="32-bit"):
        read_gguf_header(write_gguf(tmp_path / "m.gguf", {"general.alignment": True}, {}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sizes, kind, offset: (sizes, kind, offset + 32), "lies outside the file"),
        (lambda sizes, kind, offset: (sizes, kind, 1 << 63), "lies outside the file"),
        (lambda sizes, kind, offset: (sizes, kind, 0), "overlaps another tensor"),
        (lambda sizes, kind, offset: (sizes, kind, offset + 1), "not aligned"),
        (lambda sizes, kind, offset: ((sizes[0], 1 << 30), kind, offset), "lies outside the file"),
        (lambda sizes, kind, offset: ((1 << 40, 1), kind, offset), "beyond any reason"),
        (lambda sizes, kind, offset: ((0, 4), kind, offset), "beyond any reason"),
        (lambda sizes, kind, offset: ((48, 4), kind, offset), "no whole blocks"),
    ],
)
def test_refuses_a_tensor_that_cannot_be_where_it_says(
    tmp_path: Path, change: Callable[..., tuple[tuple[int, int], int, int]], words: str
) -> None:
    tensors = {"a": TENSORS["a"], "victim": ("Q8_0", np.ones((4, 64), np.float32))}
    path = write_gguf(tmp_path / "m.gguf", METADATA, tensors)
    sizes, kind, offset = change((64, 4), GGUF_TYPES["Q8_0"], 32)
    start = b"victim" + struct.pack("<I", 2)
    edited(path, start + struct.pack("<QQIQ", 64, 4, 8, 32), start + struct.pack("<QQIQ", *sizes, kind, offset))
    with pytest.raises(CheckpointCorrupt, match=words) as caught:
        read_gguf_header(path)
    assert caught.value.file == "m.gguf"


@pytest.mark.parametrize(("kind", "word"), [(12, "Q4_K"), (14, "Q6_K"), (30, "BF16"), (6, "Q5_0"), (999, "999")])
def test_names_a_tensor_type_that_it_does_not_read(tmp_path: Path, kind: int, word: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, {"blk.0.x": TENSORS["b"]})
    edited(path, struct.pack("<QQI", 64, 4, 8), struct.pack("<QQI", 64, 4, kind))
    with pytest.raises(CheckpointRejected) as caught:
        read_gguf_header(path)
    assert str(caught.value) == (
        f"m.gguf: blk.0.x: tensor has type {word}; this build reads F32, F16, Q4_0, Q4_1, Q8_0"
    )


@pytest.mark.parametrize("count", [0, 5, 1 << 31])
def test_refuses_a_number_of_dimensions_that_no_tensor_has(tmp_path: Path, count: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", METADATA, {"victim": TENSORS["b"]})
    edited(path, b"victim" + struct.pack("<I", 2), b"victim" + struct.pack("<I", count))
    with pytest.raises(CheckpointCorrupt, match="dimensions"):
        read_gguf_header(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patches(st.integers(0, 900) | st.integers(7000, 9500) | st.integers(0, 1 << 20)))
def test_mutated_headers_give_a_checkpoint_or_a_checkpoint_error(tmp_path: Path, changes: Patches) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", TINY)
    # Numbers near the names are where the danger is; most of the rest is the vocabulary.
    path.write_bytes(patched(path.read_bytes(), changes))
    opened: list[Checkpoint] = []
    error = refusal_of(lambda: opened.append(open_checkpoint(path))) or refusal_of(opened[0].tokenizer)
    assert error is None or error.file == "m.gguf"


def test_does_not_wait_on_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(CheckpointRejected, match="regular"):
        read_gguf_header(tmp_path / "m.gguf")
