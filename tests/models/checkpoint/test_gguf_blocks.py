"""Data of GGUF tensors: the same arrays that MLX's own reader makes, from a file that may only be read."""

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing
from models.checkpoint.gguf_blocks import read_gguf_array
from tests.support.tiny_checkpoints import llama_config, llama_tensors, write_llama_gguf


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "F32"])
def test_reads_the_bits_that_mlx_reads(tmp_path: Path, kind: str) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", kind=kind, embedding_kind=kind)
    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    for info in open_checkpoint(path).tensors.values():
        ours, theirs = read_gguf_array(info), np.array(arrays[info.stored_name])
        assert (ours.dtype, ours.shape, ours.nbytes) == (theirs.dtype, info.shape, info.nbytes)
        assert ours.tobytes() == theirs.tobytes()


def test_reads_values_as_they_were_written(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", kind="F32", embedding_kind="F32")
    info = open_checkpoint(path).tensors["model.embed_tokens.weight"]
    assert np.array_equal(read_gguf_array(info), llama_tensors(llama_config())["model.embed_tokens.weight"])


def test_never_opens_the_file_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = open_checkpoint(write_llama_gguf(tmp_path / "m.gguf")).tensors
    seen: list[int] = []
    really_open = os.open

    def recording(path: Path, flags: int) -> int:
        seen.append(flags & os.O_ACCMODE)
        return really_open(path, flags)

    monkeypatch.setattr(os, "open", recording)
    for info in tensors.values():
        read_gguf_array(info)
    assert seen == [os.O_RDONLY] * len(tensors)


def test_says_when_the_file_has_become_shorter_or_gone(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf")
    last = max(open_checkpoint(path).tensors.values(), key=lambda info: info.offset)
    path.write_bytes(path.read_bytes()[: last.offset + 1])
    with pytest.raises(CheckpointCorrupt, match="shorter"):
        read_gguf_array(last)
    path.unlink()
    with pytest.raises(CheckpointMissing):
        read_gguf_array(last)
