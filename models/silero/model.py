"""The graph of Silero VAD v6.2 at 16,000 samples a second: chunks of audio to probabilities of speech.

It is numpy in float32, not MLX: the recurrent layer is one small product after another, which MLX would queue one by
one and the engine's thread would have to wait for; numpy does it in microseconds, on any thread. The weights lie beside
this file with their licence. They are those of the ONNX form in the `silero-vad` wheel 6.2.3, under the names that the
wheel's safetensors file has; that file itself is of an earlier training.

Source: Silero Team, Silero VAD, https://github.com/snakers4/silero-vad (MIT), the graph of its ONNX form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.safetensors import read_safetensors_header

CHUNK_SAMPLES = 512
CONTEXT_SAMPLES = 64  # of the chunk before
STATE_WIDTH = 128
Floats = NDArray[np.float32]
_WINDOW = 256
_HOP = 128
# The BLAS of numpy takes threads for products beyond so many steps, which cost more than they bring and take the
# processors from the model.
_SINGLE_THREAD_STEPS = 1 << 18
_WEIGHTS = Path(__file__).with_name("silero_vad_v6_16k.safetensors")


@dataclass(slots=True)
class SileroState:
    """What the recurrent layer keeps between chunks: float32 [128] each."""

    hidden: Floats
    cell: Floats


def empty_state() -> SileroState:
    """Return the state before the first chunk."""
    return SileroState(np.zeros(STATE_WIDTH, np.float32), np.zeros(STATE_WIDTH, np.float32))


class Silero:
    """The weights in the order in which they are used; nothing changes after it is made, so threads may share it.

    Args:
        tensors: by the names of the file.
    """

    def __init__(self, tensors: dict[str, Floats]) -> None:
        # The file has cosines and sines under a window, its first row; a Fourier transform needs the window only.
        self._window = tensors["stft_conv.weight"][0, 0]
        self._convolutions = [(_taps(tensors[f"conv{n}.weight"]), tensors[f"conv{n}.bias"]) for n in range(1, 5)]
        # A sigmoid is half a tanh of half its argument: with the halves in the weights, all four gates are one call.
        halves = np.repeat(np.array([0.5, 0.5, 1, 0.5], np.float32), STATE_WIDTH)  # in, forget, cell, out
        self._input = np.ascontiguousarray((tensors["lstm_cell.weight_ih"] * halves[:, None]).T)  # [128, 512]
        self._recurrent = np.ascontiguousarray((tensors["lstm_cell.weight_hh"] * halves[:, None]).T)
        self._bias: Floats = (tensors["lstm_cell.bias_ih"] + tensors["lstm_cell.bias_hh"]) * halves
        self._last = tensors["final_conv.weight"].reshape(STATE_WIDTH)
        self._last_bias = tensors["final_conv.bias"]

    def probabilities(self, samples: Floats, state: SileroState) -> Floats:
        """Return how likely each chunk is speech, and bring the state up to the last of them.

        Args:
            samples: float32 [64 + 512 * chunks]; the first 64 are those before the first chunk.
            state: changed.

        Returns:
            float32 [chunks], 0 to 1.
        """
        features: Floats = self._magnitudes(samples)  # [C, 4, 129]
        for (taps, bias), stride in zip(self._convolutions, (1, 2, 2, 1), strict=True):
            features = _convolved(features, taps, bias, stride)  # [C, 4 | 2 | 1 | 1, width]
        hidden = self._recur(_product(features[:, 0], self._input) + self._bias, state)  # [C, 128]
        logits = np.maximum(hidden, 0) @ self._last + self._last_bias
        return (0.5 * np.tanh(0.5 * logits) + 0.5).astype(np.float32)

    def _magnitudes(self, samples: Floats) -> Floats:
        num_chunks = (len(samples) - CONTEXT_SAMPLES) // CHUNK_SAMPLES
        chunk = CONTEXT_SAMPLES + CHUNK_SAMPLES
        padded = np.empty((num_chunks, chunk + CONTEXT_SAMPLES), np.float32)
        padded[:, :chunk] = np.lib.stride_tricks.sliding_window_view(samples, chunk)[::CHUNK_SAMPLES]
        padded[:, chunk:] = padded[:, chunk - CONTEXT_SAMPLES - 1 : chunk - 1][:, ::-1]
        windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW, axis=1)[:, ::_HOP]  # [C, 4, 256]
        return np.abs(np.fft.rfft(windows * self._window)).astype(np.float32, copy=False)

    def _recur(self, gates: Floats, state: SileroState) -> Floats:
        """Return [C, 128]: the hidden states, one after the other."""
        width = STATE_WIDTH
        hidden = np.empty((len(gates), width), np.float32)
        last, cell = state.hidden, state.cell
        for step, gate in enumerate(gates):
            gate += last @ self._recurrent  # noqa: PLW2901 - in place
            np.tanh(gate, out=gate)
            opened = gate * np.float32(0.5) + np.float32(0.5)
            cell = opened[width : 2 * width] * cell + opened[:width] * gate[2 * width : 3 * width]
            last = np.multiply(opened[3 * width :], np.tanh(cell), out=hidden[step])
        state.hidden, state.cell = last.copy(), cell
        return hidden


def load_silero() -> Silero:
    """Read the weights.

    Raises:
        CheckpointError: the file is not what was shipped.
    """
    header = read_safetensors_header(_WEIGHTS)
    raw = _WEIGHTS.read_bytes()
    tensors = {
        name: np.frombuffer(raw, "<f4", tensor.nbytes // 4, tensor.offset).astype(np.float32).reshape(tensor.shape)
        for name, tensor in header.tensors.items()
    }
    return Silero(tensors)


def _taps(weight: Floats) -> Floats:
    """Return [3 * in, out] of a convolution's [out, in, 3]."""
    return np.ascontiguousarray(weight.transpose(2, 1, 0).reshape(-1, weight.shape[0]))


def _convolved(features: Floats, taps: Floats, bias: Floats, stride: int) -> Floats:
    """Return [C, positions / stride, out] of [C, positions, in]: three taps, a zero at each end, no negative values."""
    num_chunks, num_positions, width = features.shape
    padded = np.zeros((num_chunks, num_positions + 2, width), np.float32)
    padded[:, 1:-1] = features
    num_outputs = (num_positions + stride - 1) // stride
    joined = np.stack([padded[:, start : start + 3] for start in range(0, num_outputs * stride, stride)], axis=1)
    made = _product(joined.reshape(num_chunks * num_outputs, 3 * width), taps) + bias
    return np.maximum(made, 0).reshape(num_chunks, num_outputs, -1)


def _product(rows: Floats, weights: Floats) -> Floats:
    """Return rows [N, K] times weights [K, M], some rows at a time."""
    size = max(_SINGLE_THREAD_STEPS // weights.size, 1)
    whole = len(rows) - len(rows) % size
    made = np.empty((len(rows), weights.shape[1]), np.float32)
    np.matmul(
        rows[:whole].reshape(-1, size, rows.shape[1]), weights, out=made[:whole].reshape(-1, size, weights.shape[1])
    )
    np.matmul(rows[whole:], weights, out=made[whole:])
    return made
