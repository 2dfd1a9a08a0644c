"""Transcribes a recording that is all there, window by window: the pieces of this package put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx

from models.whisper.audio import HOP_SAMPLES, SAMPLE_RATE_HZ, WINDOW_SECONDS, LogMel, pad_frames
from models.whisper.config import Config
from models.whisper.segments import Segment, Transcript, TranscriptOptions
from models.whisper.session import Session, Window, advance
from models.whisper.timing import align
from models.whisper.tokenizer import WhisperTokenizer


def picture(samples: mx.array, config: Config) -> tuple[mx.array, int]:
    """Return a recording's log-mel picture with a window of silence behind it, and how many frames it has without.

    Args:
        samples: float32 [S], mono, 16,000 a second.
        config: of the model.
    """
    mel = LogMel(config.n_mels)(samples, WINDOW_SECONDS * SAMPLE_RATE_HZ)
    return mel, samples.size // HOP_SAMPLES


def transcribe(
    session: Session,
    tokenizer: WhisperTokenizer,
    options: TranscriptOptions,
    samples: mx.array,
    clips: Sequence[tuple[int, int]] | None = None,
) -> Iterator[Segment]:
    """Yield the segments of a recording as their windows are decoded.

    Args:
        session: of the model.
        tokenizer: whose ids.
        options: how; their language must be one of the model's.
        samples: float32 [S], mono, 16,000 a second.
        clips: (start, end) in frames, 100 a second, see `Transcript`; None: everything.
    """
    config = session.model.config
    mel, num_frames = picture(samples, config)
    transcript = Transcript(tokenizer, options, num_frames, config.num_frames, config.n_text_ctx, clips)
    while (stretch := transcript.next) is not None:
        frames = mel[stretch.start_frame : stretch.start_frame + stretch.num_frames]
        (memory,) = session.hear([pad_frames(frames, config.num_frames)])
        window = Window(memory, transcript.decoding())
        while (found := window.decoding.result) is None:
            advance(session, [window])
        words = None
        if options.has_words:
            spoken = transcript.spoken(found)
            words = align(session.model, tokenizer, memory, spoken, options.decoding, stretch.num_frames)
        yield from transcript.accept(found, words)
