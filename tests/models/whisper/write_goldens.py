"""Writes what mlx-whisper makes of the recordings: `python -P -m tests.models.whisper.write_goldens`."""

from native import blas

# Before MLX is imported, which then computes with it: minutes become seconds.
blas.load()

import json  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from tests.models.whisper.oracle import read_wav, transcribed, write_as_mlx  # noqa: E402
from tests.support.whisper_base import whisper_base_path  # noqa: E402

RECORDINGS = Path(__file__).parent / "recordings"


def golden(transcript: dict[str, Any]) -> dict[str, Any]:
    """Return the text, its tokens with times, and each word's text, start, end and probability."""
    tokens = [token for segment in transcript["segments"] for token in segment["tokens"]]
    words = [word for segment in transcript["segments"] for word in segment["words"]]
    facts = [[word["word"], float(word["start"]), float(word["end"]), round(word["probability"], 6)] for word in words]
    return {"text": transcript["text"], "tokens": tokens, "words": facts}


def main() -> None:
    """Write mlx_whisper.json."""
    options = {"language": "en", "temperature": 0.0, "word_timestamps": True}
    with tempfile.TemporaryDirectory() as folder:
        model = write_as_mlx(Path(folder), whisper_base_path())
        goldens = {
            path.stem: golden(transcribed(model, read_wav(path), **options))
            for path in sorted(RECORDINGS.glob("*.wav"))
        }
    (RECORDINGS / "mlx_whisper.json").write_text(json.dumps(goldens, indent=1) + "\n")


if __name__ == "__main__":
    main()
