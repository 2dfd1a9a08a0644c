"""Loads tiny Whispers and steps them, for several tests."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from models.step import NumericPath
from models.whisper.folder import open_whisper
from models.whisper.loading import LoadedWhisper, load_whisper
from models.whisper.model import Part, Whisper
from models.whisper.state import Texts
from tests.support.tiny_whisper import SIZES

PROMPT = [50_258, 50_259, 50_359, 50_364]
TOKENS = [[321], [77], [50_000], [12_345]]


def load(
    folder: Path, path: NumericPath = NumericPath.REFERENCE, dtype: mx.Dtype | None = None, *, cpu_kernels: bool = True
) -> LoadedWhisper:
    return load_whisper(open_whisper(folder), path, lambda *_: None, dtype=dtype, cpu_kernels=cpu_kernels)


def picture(seed: int = 1, num_frames: int = 2 * SIZES["n_audio_ctx"], num_bands: int = 80) -> mx.array:
    """Return [1, F, M]."""
    return mx.array(np.random.default_rng(seed).normal(0, 0.5, (1, num_frames, num_bands)).astype(np.float32))


def texts_of(model: Whisper, seed: int = 1, num_texts: int = 1) -> Texts:
    return Texts(model.remember(model.encode(picture(seed, num_bands=model.config.n_mels))), num_texts)


def step(model: Whisper, texts: Texts, tokens: Sequence[Sequence[int]]) -> mx.array:
    """Return logits [B, T, V]."""
    logits = model.head(model.hidden([Part(mx.array([list(row) for row in tokens]), texts)])[0])
    mx.eval(logits)
    return logits


def logits_of(model: Whisper, steps: Sequence[Sequence[int]] = (PROMPT, *TOKENS), seed: int = 1) -> list[mx.array]:
    texts = texts_of(model, seed)
    return [step(model, texts, [list(tokens)]) for tokens in steps]
