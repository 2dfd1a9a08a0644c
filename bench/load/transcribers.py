"""What turns speech into text in the process that measures it: Pomona's session, and the peers' own functions.

Nothing but the standard library is imported before it is needed: each process has one of them, and a BLAS that must be
loaded before MLX.
"""

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SAMPLE_RATE_HZ = 16_000
NUM_CLIPS = 8

# float32 [S] and the number of beams, to text.
Transcribe = Callable[[Any, int], str]


def _pomona(folder: Path, _dtype: str, threads: int) -> Transcribe:
    session, tokenizer = _session(folder, threads)

    import mlx.core as mx

    from models.whisper.decoding import DecodingOptions
    from models.whisper.segments import TranscriptOptions
    from models.whisper.transcribe import transcribe

    def run(samples: Any, beams: int) -> str:
        decoding = DecodingOptions(language="en", temperatures=(0.0,), num_beams=beams)
        segments = transcribe(session, tokenizer, TranscriptOptions(decoding), mx.array(samples))
        return "".join(segment.text for segment in segments)

    return run


@functools.cache
def _session(folder: Path, threads: int) -> tuple[Any, Any]:
    """Return what computes, and the tokenizer; once in a process, for its BLAS can be chosen once."""
    from native import blas

    blas.load(threads)

    from models.step import NumericPath
    from models.whisper.folder import open_whisper
    from models.whisper.loading import load_whisper
    from models.whisper.session import Session
    from native import kernels

    def ignore(_what: str, _done: int, _total: int) -> None:
        return

    loaded = load_whisper(open_whisper(folder), NumericPath.FAST, ignore)
    if loaded.kernels == "native":
        kernels.set_threads(threads)
    return Session(loaded.model, is_reference=False), loaded.tokenizer


def _mlx_whisper(folder: Path, dtype: str, threads: int) -> Transcribe:
    if dtype == "float32":
        from native import blas

        blas.load(threads)
    module: Any = importlib.import_module("mlx_whisper")

    def run(samples: Any, _beams: int) -> str:
        options = {"path_or_hf_repo": str(folder), "fp16": dtype == "float16", "language": "en", "temperature": 0.0}
        return module.transcribe(samples, **options)["text"]

    return run


def _faster_whisper(folder: Path, dtype: str, threads: int) -> Transcribe:
    module: Any = importlib.import_module("faster_whisper")
    model = module.WhisperModel(str(folder), device="cpu", compute_type=dtype, cpu_threads=threads)

    def run(samples: Any, beams: int) -> str:
        segments, _ = model.transcribe(samples, language="en", beam_size=beams, temperature=0.0)
        return "".join(segment.text for segment in segments)

    return run


def side_by_side(folder: Path, threads: int, samples: Any) -> dict[str, float]:
    """Return seconds for eight clips at once, each begun at another second, and for the same one after the other."""
    import numpy as np

    clips = [np.roll(samples, -number * SAMPLE_RATE_HZ) for number in range(NUM_CLIPS)]
    session, tokenizer = _session(folder, threads)
    figures: dict[str, float] = {}
    for name, groups in (("at_once", [clips]), ("one_by_one", [[clip] for clip in clips])):
        started = time.perf_counter()
        for group in groups:
            hear_together(session, tokenizer, group)
        figures[name] = time.perf_counter() - started
    return figures


def hear_together(session: Any, tokenizer: Any, clips: Sequence[Any]) -> None:
    """Transcribe clips, two windows heard at a time and all of them decoded together."""
    import mlx.core as mx

    from models.whisper.audio import pad_frames
    from models.whisper.decoding import DecodingOptions
    from models.whisper.segments import Transcript, TranscriptOptions
    from models.whisper.session import Window, advance
    from models.whisper.transcribe import picture

    config = session.model.config
    options = TranscriptOptions(DecodingOptions(language="en", temperatures=(0.0,)))
    pictures = [picture(mx.array(clip), config) for clip in clips]
    transcripts = [Transcript(tokenizer, options, count, config.num_frames, config.n_text_ctx) for _, count in pictures]
    windows: dict[int, Window] = {}
    while any(transcript.next for transcript in transcripts):
        waiting = [n for n, transcript in enumerate(transcripts) if n not in windows and transcript.next][:2]
        stretches = [stretch for n in waiting if (stretch := transcripts[n].next)]
        mels = [
            pad_frames(pictures[n][0][s.start_frame : s.start_frame + s.num_frames], config.num_frames)
            for n, s in zip(waiting, stretches, strict=True)
        ]
        for n, memory in zip(waiting, session.hear(mels) if mels else [], strict=True):
            windows[n] = Window(memory, transcripts[n].decoding())
        advance(session, list(windows.values()))
        for n, window in list(windows.items()):
            if window.decoding.result is not None:
                transcripts[n].accept(window.decoding.result)
                del windows[n]


# By whose: of a folder of weights, a dtype and a number of threads.
LOADERS: Mapping[str, Callable[[Path, str, int], Transcribe]] = {
    "pomona": _pomona,
    "mlx_whisper": _mlx_whisper,
    "faster_whisper": _faster_whisper,
}
