"""Times of media: read from options, and as a request holds them."""

import math
import re
from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration
from pomona.v1 import transcription_pb2

from gateway.cli.failures import UsageError

# A year, far more than any recording and far less than a Duration holds.
MAX_S = 366 * 86_400
_TIME = r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)"
_CLIP = re.compile(rf"{_TIME}-(?:{_TIME})?", re.ASCII)


def duration(option: str, seconds: float) -> Duration:
    """Return seconds as a Duration, to the microsecond.

    Raises:
        UsageError: they are no time, or below 0.
    """
    if not (math.isfinite(seconds) and 0 <= seconds <= MAX_S):
        raise UsageError(f"{option}: {seconds:g} is no number of seconds from 0 on")
    made = Duration()
    made.FromMicroseconds(round(seconds * 1_000_000))
    return made


def seconds_of(span: Duration) -> float:
    """Return a Duration in seconds."""
    return span.seconds + span.nanos / 1e9


def milliseconds_of(span: Duration) -> int:
    """Return a Duration in milliseconds, the nearest; none is below 0."""
    return max(0, (span.seconds * 1_000_000_000 + span.nanos + 500_000) // 1_000_000)


def parse_clips(text: str) -> Iterator[transcription_pb2.Clip]:
    """Read A-B,..., each time in seconds or as [H:]M:S; without B a clip goes to the end.

    Raises:
        UsageError: it is none, or a clip begins before the one before it ends, or ends before it begins.
    """
    begin_ms: int | None = 0
    for part in text.split(","):
        match = _CLIP.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--clips: {part.strip()!r} is not A-B, such as 0-5.5 or 1:05-1:30, or 60- to the end")
        times = match.groups()
        clip = transcription_pb2.Clip(start_offset=duration("--clips", _seconds(*times[:3])))
        if begin_ms is None or milliseconds_of(clip.start_offset) < begin_ms:
            raise UsageError(f"--clips: {part.strip()!r} begins before the one before it ends")
        begin_ms = None
        if times[5] is not None:
            clip.end_offset.CopyFrom(duration("--clips", _seconds(*times[3:])))
            begin_ms = milliseconds_of(clip.end_offset)
            if begin_ms <= milliseconds_of(clip.start_offset):
                raise UsageError(f"--clips: {part.strip()!r} ends before it begins")
        yield clip


def _seconds(hours: str | None, minutes: str | None, seconds: str) -> float:
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)
