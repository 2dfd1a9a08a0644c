"""Segments as text that players and programs read: lines, SubRip, WebVTT, and a table of times.

Times run on: within a channel a cue begins no earlier than the one before it ended, and lasts a millisecond at least.

Sources: W3C WebVTT, sections 4.1 (files) and 4.2 (text and times inside a cue); SubRip has no standard, so what the
players agree on: numbers from 1, a comma before the milliseconds, a blank line behind every cue and none inside.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pomona.v1 import transcription_pb2

from gateway.cli.spans import milliseconds_of

# Within a cue's text it would be read as its times.
_ARROW, _HARMLESS_ARROW = "-->", "->"


@dataclass(frozen=True, slots=True)
class Cue:
    """What is said in a stretch of time.

    Attributes:
        start_ms: in milliseconds.
        end_ms: later than `start_ms`.
        text: one line or several, none of them blank.
        channel: from 0 on; None where the channels were mixed.
        words: with the times of each, where they are known.
    """

    start_ms: int
    end_ms: int
    text: str
    channel: int | None = None
    words: Sequence[transcription_pb2.Word] = ()


class Notation(Protocol):
    """How cues are written."""

    header: str

    def cue(self, cue: Cue) -> str:
        """Return a cue with what separates it from the next."""
        ...


class Lines:
    """A line for each segment: its text, behind the channel where they are apart."""

    header = ""

    def cue(self, cue: Cue) -> str:
        """Return the line."""
        label = "" if cue.channel is None else f"[channel {cue.channel}] "
        return f"{label}{_one_line(cue.text)}\n"


class SubRip:
    """Numbered cues for players: `.srt`."""

    header = ""

    def __init__(self) -> None:
        self._number = 0

    def cue(self, cue: Cue) -> str:
        """Return the next cue with its number."""
        self._number += 1
        label = "" if cue.channel is None else f"[channel {cue.channel}] "
        times = f"{clock(cue.start_ms, ',')} {_ARROW} {clock(cue.end_ms, ',')}"
        return f"{self._number}\n{times}\n{label}{cue.text.replace(_ARROW, _HARMLESS_ARROW)}\n\n"


class WebVtt:
    """Cues for browsers: `.vtt`. Words have their times inside the cue, for `::past` and `::future` of styles."""

    header = "WEBVTT\n\n"

    def cue(self, cue: Cue) -> str:
        """Return a cue; each channel is a voice of its own."""
        voice = "" if cue.channel is None else f"<v channel {cue.channel}>"
        text = "".join(self._timed(cue)) if cue.words else _escaped(cue.text)
        return f"{clock(cue.start_ms)} {_ARROW} {clock(cue.end_ms)}\n{voice}{text}\n\n"

    def _timed(self, cue: Cue) -> Iterator[str]:
        """Yield the words, each behind the time of its beginning where that lies within the cue and behind the last."""
        last_ms = cue.start_ms
        for index, word in enumerate(cue.words):
            text = _one_line(word.text)
            start_ms = milliseconds_of(word.start_offset)
            if index and word.text[:1].isspace():
                yield " "
            if last_ms < start_ms < cue.end_ms:
                yield f"<{clock(start_ms)}>"
                last_ms = start_ms
            yield _escaped(text)


class Table:
    """Columns with tabs between, times in milliseconds: `.tsv`."""

    def __init__(self, *, has_channels: bool) -> None:
        self.header = "start\tend\tchannel\ttext\n" if has_channels else "start\tend\ttext\n"

    def cue(self, cue: Cue) -> str:
        """Return a row."""
        columns = [cue.start_ms, cue.end_ms] + ([] if cue.channel is None else [cue.channel])
        return "\t".join([*map(str, columns), _one_line(cue.text)]) + "\n"


class Subtitles:
    """Writes final segments as they come.

    Args:
        format_name: txt, srt, vtt or tsv.
        words_apart: whether each word is a cue of its own, in notations that have no times inside a cue.
        has_channels: whether the channels are apart; their segments come in order of time.
    """

    def __init__(self, format_name: str, *, words_apart: bool = False, has_channels: bool = False) -> None:
        self._notation = _notation(format_name, has_channels=has_channels)
        self._words_apart = words_apart and format_name in {"srt", "tsv"}
        self._times_words = words_apart and format_name == "vtt"
        self._has_channels = has_channels
        self._ends_ms: defaultdict[int, int] = defaultdict(int)

    @property
    def header(self) -> str:
        """What stands above the first cue, also where there is none."""
        return self._notation.header

    def add(self, segment: transcription_pb2.Segment) -> str:
        """Return what a final segment adds; empty where nothing is said in it."""
        return "".join(map(self._notation.cue, self._cues(segment)))

    def _cues(self, segment: transcription_pb2.Segment) -> Iterator[Cue]:
        if self._words_apart and segment.words:
            for word in segment.words:
                yield from self._cue(segment, word.text, word)
            return
        yield from self._cue(segment, segment.stable_text, segment)

    def _cue(
        self,
        segment: transcription_pb2.Segment,
        said: str,
        when: transcription_pb2.Segment | transcription_pb2.Word,
    ) -> Iterator[Cue]:
        """Yield a cue, unless nothing is said in it."""
        text = "\n".join(filter(None, map(str.strip, said.splitlines())))
        if not text:
            return
        start_ms = max(milliseconds_of(when.start_offset), self._ends_ms[segment.channel])
        end_ms = max(milliseconds_of(when.end_offset), start_ms + 1)
        self._ends_ms[segment.channel] = end_ms
        channel = segment.channel if self._has_channels else None
        yield Cue(start_ms, end_ms, text, channel, segment.words if self._times_words else ())


def clock(time_ms: int, point: str = ".") -> str:
    """Return a time as hours, minutes, seconds and milliseconds; the hours have two digits or more."""
    seconds, milliseconds = divmod(time_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{point}{milliseconds:03d}"


def _notation(format_name: str, *, has_channels: bool) -> Notation:
    match format_name:
        case "srt":
            return SubRip()
        case "vtt":
            return WebVtt()
        case "tsv":
            return Table(has_channels=has_channels)
        case _:
            return Lines()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _one_line(text: str) -> str:
    return " ".join(text.replace("\t", " ").splitlines()).strip()
