"""Turns what is told of speech into messages of the contract."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration
from pomona.v1 import common_pb2
from pomona.v1 import transcription_pb2 as pb

from worker.events import (
    Completed,
    EndingSoon,
    Event,
    LanguageFound,
    SegmentEnd,
    SpeechProgress,
    SpeechSegment,
    SpokenWord,
    Timing,
    Usage,
    VoiceChange,
)
from worker.services.messages import timing
from worker.speech.tags import tag_of

# Recommended: a fifth of a second of two channels at 48,000 a second.
PREFERRED_CHUNK_BYTES = 32 << 10
ENDING_REASON = "the model is being unloaded"

SEGMENT_ENDS: Mapping[SegmentEnd | None, pb.SegmentEnd.ValueType] = {
    None: pb.SEGMENT_END_UNSPECIFIED,
    SegmentEnd.SILENCE: pb.SEGMENT_END_SILENCE,
    SegmentEnd.MAX_LENGTH: pb.SEGMENT_END_MAX_LENGTH,
    SegmentEnd.CLIENT_FINALIZED: pb.SEGMENT_END_CLIENT_FINALIZED,
    SegmentEnd.END_OF_AUDIO: pb.SEGMENT_END_END_OF_AUDIO,
    SegmentEnd.TIMESTAMP: pb.SEGMENT_END_TIMESTAMP,
}


def ready_message(resolved: common_pb2.ResolvedModel, request_id: str) -> pb.TranscriptionEvent:
    """Return the event that says that audio may come."""
    ready = pb.TranscriptionReady(
        resolved_model=resolved, request_id=request_id, preferred_chunk_bytes=PREFERRED_CHUNK_BYTES
    )
    return pb.TranscriptionEvent(ready=ready)


def event_message(event: Event) -> pb.TranscriptionEvent:
    """Return the event that says what the engine told.

    Raises:
        TypeError: it is none that a stream of speech says by itself.
    """
    match event:
        case SpeechSegment():
            return pb.TranscriptionEvent(segment=segment_message(event))
        case VoiceChange():
            kind = pb.VoiceActivity.KIND_SPEECH_STARTED if event.is_speech else pb.VoiceActivity.KIND_SPEECH_ENDED
            return pb.TranscriptionEvent(voice_activity=pb.VoiceActivity(kind=kind, offset=duration(event.offset_s)))
        case LanguageFound():
            language = pb.LanguageDetected(language_code=tag_of(event.language), probability=event.probability)
            return pb.TranscriptionEvent(language=language)
        case SpeechProgress():
            return pb.TranscriptionEvent(progress=_progress(event))
        case EndingSoon():
            ending = pb.StreamEnding(reason=ENDING_REASON, remaining=duration(event.remaining_s))
            return pb.TranscriptionEvent(ending=ending)
        case _:
            raise TypeError(f"{type(event).__name__} is no event of speech")


def completed_message(completed: Completed, text: str, language: str) -> pb.TranscriptionEvent:
    """Return the last event of a stream."""
    return pb.TranscriptionEvent(
        completed=pb.TranscriptionCompleted(
            usage=usage_message(completed.usage, completed.timing), text=text, language_code=tag_of(language)
        )
    )


def segment_message(segment: SpeechSegment) -> pb.Segment:
    """Return a segment."""
    return pb.Segment(
        segment_id=segment.segment_id,
        final=segment.is_final,
        revision=segment.revision,
        start_offset=duration(segment.start_s),
        end_offset=duration(segment.end_s),
        stable_text=segment.stable_text,
        unstable_text=segment.unstable_text,
        words=[_word(word) for word in segment.words],
        language_code=tag_of(segment.language),
        channel=segment.channel,
        avg_logprob=segment.avg_logprob,
        no_speech_prob=segment.no_speech_prob,
        compression_ratio=segment.compression_ratio,
        temperature=segment.temperature,
        alternatives=[pb.Alternative(text=text, avg_logprob=logprob) for text, logprob in segment.alternatives],
        end_reason=SEGMENT_ENDS[segment.end],
    )


def usage_message(usage: Usage, measured: Timing) -> pb.TranscriptionUsage:
    """Return what a request consumed."""
    message = pb.TranscriptionUsage(
        audio_duration=duration(usage.audio_s), decoded_tokens=usage.completion_tokens, timing=timing(measured)
    )
    if usage.speech_s is not None:
        message.speech_duration.CopyFrom(duration(usage.speech_s))
    return message


def duration(seconds: float) -> Duration:
    """Return a length of time, to the microsecond."""
    found = Duration()
    found.FromMicroseconds(round(seconds * 1e6))
    return found


def _word(word: SpokenWord) -> pb.Word:
    return pb.Word(
        text=word.text,
        start_offset=duration(word.start_s),
        end_offset=duration(word.end_s),
        probability=word.probability,
    )


def _progress(progress: SpeechProgress) -> pb.TranscriptionProgress:
    message = pb.TranscriptionProgress(
        audio_received=duration(progress.received_s), audio_processed=duration(progress.processed_s)
    )
    if progress.lag_s is not None:
        message.lag.CopyFrom(duration(progress.lag_s))
    return message
