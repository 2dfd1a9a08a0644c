"""Writes `goldens.npz`: what Silero VAD's own ONNX form says of audio that the tests make or have.

Run by hand, where onnxruntime and the `silero-vad` wheel 6.2.3 (unpacked) are:

    python -m tests.models.silero.write_goldens FOLDER_OF_THE_WHEEL
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingImports]

from tests.models.silero.sounds import CLIPS, sound

CHUNK, CONTEXT = 512, 64


def probabilities(session: onnxruntime.InferenceSession, samples: np.ndarray) -> np.ndarray:
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(CONTEXT, np.float32)
    found = []
    for start in range(0, len(samples), CHUNK):
        chunk = np.zeros(CHUNK, np.float32)
        chunk[: len(samples[start : start + CHUNK])] = samples[start : start + CHUNK]
        feed = {"input": np.concatenate([context, chunk])[None], "state": state, "sr": np.array(16_000, np.int64)}
        output, state = session.run(None, feed)
        context = chunk[-CONTEXT:]
        found.append(output[0, 0])
    return np.array(found, np.float32)


def main() -> None:
    session = onnxruntime.InferenceSession(str(Path(sys.argv[1]) / "silero_vad/data/silero_vad.onnx"))
    goldens = {clip: probabilities(session, sound(clip)) for clip in CLIPS}
    np.savez_compressed(Path(__file__).with_name("goldens.npz"), allow_pickle=False, **goldens)
    for clip, found in goldens.items():
        print(f"{clip}: {len(found)} chunks, {found.min():.4f} to {found.max():.4f}")


if __name__ == "__main__":
    main()
