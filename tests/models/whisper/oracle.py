"""What mlx-whisper makes of recordings, from Whisper base written in its layout."""

import importlib
import json
import wave
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from models.checkpoint.raw_arrays import read_raw_array
from models.whisper.config import SIZE_KEYS
from models.whisper.folder import open_whisper


def mlx_whisper_module(module: str) -> Any:
    """Return a module of mlx-whisper, whose annotations are not to be believed."""
    return importlib.import_module(f"mlx_whisper.{module}")


def write_as_mlx(folder: Path, source: Path, dtype: str = "float32") -> Path:
    """Write a CTranslate2 checkpoint as MLX's layout."""
    checkpoint = open_whisper(source)
    tensors: dict[str, mx.array] = {"alignment_heads": mx.array(checkpoint.config["alignment_heads"])}
    for name, info in checkpoint.tensors.items():
        if name != "encoder.positional_embedding":
            array = read_raw_array(info)
            tensors[name] = (mx.transpose(array, info.axes) if info.axes else array).astype(getattr(mx, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "weights.safetensors"), tensors)
    sizes = {key: checkpoint.config[key] for key in SIZE_KEYS}
    (folder / "config.json").write_text(json.dumps({"model_type": "whisper", **sizes}))
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return folder


def read_wav(path: Path) -> mx.array:
    """Return float32 [S] of a mono recording of 16,000 samples a second."""
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        raw = file.readframes(file.getnframes())
    return mx.array(np.frombuffer(raw, np.int16).astype(np.float32) / 32768)


def transcribed(folder: Path, samples: mx.array, **options: Any) -> dict[str, Any]:
    """Return mlx-whisper's transcript in float32."""
    return mlx_whisper_module("transcribe").transcribe(
        np.array(samples), path_or_hf_repo=str(folder), fp16=False, **options
    )
