"""A recording as windows one after the other, and their texts as segments. Plain Python.

The next window starts where the last whole segment ended, so that no word is cut. What a window says is cut back where
it repeats itself: a loop is neither kept nor told to the next window.
Source: Radford et al. 2022, arXiv:2212.04356, section 4.5, and OpenAI's `transcribe.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from models.whisper.audio import FRAMES_PER_SECOND
from models.whisper.config import FRAMES_PER_POSITION
from models.whisper.decoding import Decoding, DecodingOptions, WindowText, context_tokens
from models.whisper.inventions import first_invention
from models.whisper.loops import said
from models.whisper.tokenizer import SECONDS_PER_TIME, WhisperTokenizer
from models.whisper.words import Word, merge_punctuation, pace_of, settle, shorten_at_sentence_ends

_RESET_TEMPERATURE = 0.5
_MIN_CLIP_FRAMES = 2  # what is left of a clip below this has no word
# A window of less is never heard alone if the one before can leave it a segment: Whisper invents what it does not hear.
_MIN_REST_FRAMES = 100
_LEAST_ADVANCE_S = 1.0  # where a window begins with what was invented
# Nobody speaks so fast: what a window says beyond it was not said. The fastest speakers reach 25 characters a second.
_MAX_CHARACTERS_PER_SECOND = 40
_FREE_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    """How a recording is transcribed.

    Attributes:
        decoding: of each window.
        conditions_on_previous: whether a window is told what was said before.
        initial_prompt: text that the first window is told.
        phrases: names and terms that every window is told.
        has_words: whether words get times.
        max_silence_s: where words get times, a segment of words that cannot have been said, with a longer silence
            around it, is not believed, and what follows it is heard again; None: every segment is.
    """

    decoding: DecodingOptions
    conditions_on_previous: bool = True
    initial_prompt: str = ""
    phrases: tuple[str, ...] = ()
    has_words: bool = False
    max_silence_s: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech.

    Attributes:
        start_s: seconds from the start of the recording.
        end_s: the same, later than `start_s`.
        text: with the space before it.
        tokens: of the text, with its times.
        window: the text of the whole window, with what is known of it.
        words: none unless asked for.
    """

    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]
    window: WindowText
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of a recording that are a window's; the rest of the window is silence."""

    start_frame: int
    num_frames: int

    @property
    def start_s(self) -> float:
        """Seconds from the start of the recording."""
        return self.start_frame / FRAMES_PER_SECOND

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.num_frames / FRAMES_PER_SECOND


class Transcript:
    """Says which window comes next, and makes segments of what it said.

    Args:
        tokenizer: whose ids.
        options: how.
        num_frames: of the recording, 100 a second; while that is not known, more than it will have, see `end_at`.
        num_window_frames: 3,000.
        num_positions: of the decoder.
        clips: (start, end) in frames, in order; None: everything. What lies outside the recording is left out.

    Raises:
        EncodeError: the tokenizer fails on the initial prompt.
    """

    def __init__(
        self,
        tokenizer: WhisperTokenizer,
        options: TranscriptOptions,
        num_frames: int,
        num_window_frames: int,
        num_positions: int,
        clips: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._num_window_frames = num_window_frames
        self._num_positions = num_positions
        bounded = [(max(0, start), min(end, num_frames)) for start, end in clips or [(0, num_frames)]]
        self._clips = [(start, end) for start, end in bounded if end - start >= _MIN_CLIP_FRAMES]
        self._seek = self._clips[0][0] if self._clips else 0
        prompt = options.initial_prompt.strip()
        self._previous = tokenizer.encode(f" {prompt}") if prompt else []
        self._last_end_s = 0.0

    @property
    def next(self) -> Stretch | None:
        """The next window; None where there is none left."""
        if not self._clips:
            return None
        return Stretch(self._seek, min(self._num_window_frames, self._clips[0][1] - self._seek))

    def decoding(self) -> Decoding:
        """Return a new decoding of the next window."""
        options = self._options
        context = context_tokens(self._tokenizer, self._num_positions, self._previous, options.phrases)
        return Decoding(self._tokenizer, options.decoding, self._num_positions, context)

    def speak(self, language: str) -> None:
        """Say in which of the tokenizer's languages the recording is, where that was not known at first."""
        self._options = replace(self._options, decoding=replace(self._options.decoding, language=language))

    def end_at(self, num_frames: int) -> None:
        """Say how many frames the recording has, now that it is known; no window may have been taken beyond."""
        self._clips = [(start, min(end, num_frames)) for start, end in self._clips]
        self._advance(0)

    def skip_to(self, frame: int) -> None:
        """Have the next window start at a frame, or at the clip behind it: nobody speaks before."""
        self._advance(max(0, frame - self._seek))

    def accept(
        self,
        found: WindowText,
        words: Sequence[Word] | None = None,
        is_speech: Callable[[float, float], bool] | None = None,
    ) -> list[Segment]:
        """Make segments of the next window's text, and go on to the window after.

        Args:
            found: what the window said.
            words: of `spoken(found)`, seconds from the start of the window; None where they were not asked for.
            is_speech: whether somebody speaks between two seconds of the recording; a segment where nobody does is
                neither returned nor told to later windows.

        Returns:
            Segments in order, within the window, none before the end of those returned before.
        """
        stretch = self.next
        if stretch is None:
            return []
        tokens = said(found.tokens, self._tokenizer.first_time)
        if self._is_nothing(found, tokens, stretch):
            self._previous = self._previous if tokens else []
            self._advance(stretch.num_frames)
            return []
        is_cut = len(tokens) < len(found.tokens)
        pieces, num_frames = self._pieces(tokens, stretch, is_cut=is_cut)
        segments = [segment for piece in pieces if (segment := self._segment(piece, stretch, found)) is not None]
        if words is not None:
            if pieces == [tokens]:
                # As mlx-whisper: of a window that is one segment, its words alone say where it starts.
                segments = [replace(segment, start_s=stretch.start_s) for segment in segments]
            segments, num_frames = self._with_words(segments, words, stretch, num_frames)
        if is_speech is not None:
            segments = [segment for segment in segments if is_speech(segment.start_s, segment.end_s)]
        segments = [kept for segment in segments if (kept := self._in_order(segment, stretch)) is not None]
        self._remember(segments, found, is_cut=is_cut)
        self._advance(num_frames)
        return segments

    def spoken(self, found: WindowText) -> tuple[int, ...]:
        """Return the tokens of text that `accept` would make segments of: those whose words it takes."""
        stretch = self.next
        tokens = said(found.tokens, self._tokenizer.first_time)
        if stretch is None or self._is_nothing(found, tokens, stretch):
            return ()
        pieces, _ = self._pieces(tokens, stretch, is_cut=len(tokens) < len(found.tokens))
        return tuple(token for piece in pieces for token in piece if token < self._tokenizer.end)

    def _is_nothing(self, found: WindowText, tokens: Sequence[int], stretch: Stretch) -> bool:
        if found.is_silence(self._options.decoding) or not tokens:
            return True
        limit = _FREE_CHARACTERS + _MAX_CHARACTERS_PER_SECOND * stretch.duration_s
        return len(self._tokenizer.decode(tokens)) > limit

    def _pieces(self, tokens: Sequence[int], stretch: Stretch, *, is_cut: bool) -> tuple[list[tuple[int, ...]], int]:
        """Split tokens between pairs of times; return the pieces, and how many frames of the window they settle."""
        first = self._tokenizer.first_time
        splits = [place for place in range(1, len(tokens)) if tokens[place] >= first and tokens[place - 1] >= first]
        ends_alone = len(tokens) > 1 and tokens[-1] >= first > tokens[-2]
        if not splits and not (is_cut and ends_alone):
            return [tuple(tokens)], stretch.num_frames
        if ends_alone:
            splits.append(len(tokens))
        starts = [0, *splits[:-1]]
        pieces = [tuple(tokens[start:stop]) for start, stop in zip(starts, splits, strict=False)]
        if ends_alone and not is_cut:
            return self._leave_rest(pieces, stretch)
        # The last segment has no end yet: the next window starts with it.
        settled = (tokens[splits[-1] - 1] - first) * FRAMES_PER_POSITION
        return pieces, settled if 0 < settled <= stretch.num_frames else stretch.num_frames

    def _leave_rest(self, pieces: list[tuple[int, ...]], stretch: Stretch) -> tuple[list[tuple[int, ...]], int]:
        """Settle a window as a whole, or all but its last segment where too little of the clip is left behind it."""
        rest = self._clips[0][1] - stretch.start_frame - stretch.num_frames
        settled = (pieces[-1][0] - self._tokenizer.first_time) * FRAMES_PER_POSITION
        if len(pieces) > 1 and 0 < rest < _MIN_REST_FRAMES and 0 < settled < stretch.num_frames:
            return pieces[:-1], settled
        return pieces, stretch.num_frames

    def _segment(self, tokens: tuple[int, ...], stretch: Stretch, found: WindowText) -> Segment | None:
        """Return a segment; None where it has no text."""
        first = self._tokenizer.first_time
        times = [(token - first) * SECONDS_PER_TIME for token in tokens if token >= first]
        starts_with_time = bool(tokens) and tokens[0] >= first
        start_s = times[0] if starts_with_time and len(times) > 1 else 0.0
        end_s = times[-1] if times and times[-1] > 0 else stretch.duration_s
        text = self._tokenizer.decode(tokens)
        if not text.strip():
            return None
        return Segment(stretch.start_s + start_s, stretch.start_s + end_s, text, tokens, found)

    def _with_words(
        self, segments: Sequence[Segment], words: Sequence[Word], stretch: Stretch, num_frames: int
    ) -> tuple[list[Segment], int]:
        """Give segments their words; return them, and how many frames of the window they settle."""
        pace = pace_of(words)
        merged = merge_punctuation(shorten_at_sentence_ends(words, pace))
        offset = stretch.start_s
        placed = [replace(word, start_s=offset + word.start_s, end_s=offset + word.end_s) for word in merged]
        last_speech_s = self._last_end_s
        found: list[Segment] = []
        for segment in segments:
            own, placed = _taken(placed, sum(1 for token in segment.tokens if token < self._tokenizer.end))
            own, start_s, end_s = settle(own, segment.start_s, segment.end_s, last_speech_s, pace)
            last_speech_s = end_s
            start_s = min([start_s, *(word.start_s for word in own[:1])])
            end_s = max([end_s, *(word.end_s for word in own[-1:])])
            found.append(replace(segment, start_s=start_s, end_s=end_s, words=tuple(own)))
        if found and num_frames < stretch.num_frames and last_speech_s > offset:
            num_frames = min(stretch.num_frames, round((last_speech_s - offset) * FRAMES_PER_SECOND))
        return self._without_inventions(found, stretch, max(1, num_frames))

    def _without_inventions(
        self, segments: list[Segment], stretch: Stretch, num_frames: int
    ) -> tuple[list[Segment], int]:
        """Keep what stands before the first segment that was invented, and start the next window with that."""
        limit_s = self._options.max_silence_s
        if limit_s is None:
            return segments, num_frames
        window = stretch.start_s, stretch.start_s + stretch.duration_s
        place = first_invention([segment.words for segment in segments], window, self._last_end_s, limit_s)
        if place is None:
            return segments, num_frames
        if self._clips[0][1] / FRAMES_PER_SECOND - segments[place].end_s < limit_s:
            return segments[:place], stretch.num_frames
        again_s = max(_LEAST_ADVANCE_S, segments[place].start_s - stretch.start_s)
        return segments[:place], min(stretch.num_frames, round(again_s * FRAMES_PER_SECOND))

    def _in_order(self, segment: Segment, stretch: Stretch) -> Segment | None:
        """Keep a segment within its window and behind the one before; None where nothing is left of it."""
        start_s = max(segment.start_s, self._last_end_s)
        end_s = min(segment.end_s, stretch.start_s + stretch.duration_s)
        if end_s <= start_s:
            return None
        self._last_end_s = end_s
        words = tuple(_within(word, start_s, end_s) for word in segment.words)
        return replace(segment, start_s=start_s, end_s=end_s, words=words)

    def _remember(self, segments: Sequence[Segment], found: WindowText, *, is_cut: bool) -> None:
        if is_cut or not self._options.conditions_on_previous or found.temperature > _RESET_TEMPERATURE:
            self._previous = []
            return
        if not found.is_told:
            self._previous = []
        self._previous += [token for segment in segments for token in segment.tokens]
        self._previous = self._previous[-self._num_positions :]

    def _advance(self, num_frames: int) -> None:
        self._seek += num_frames
        while self._clips and self._clips[0][1] - self._seek < _MIN_CLIP_FRAMES:
            self._clips.pop(0)
            if self._clips:
                self._seek = max(self._seek, self._clips[0][0])


def _taken(words: Sequence[Word], num_tokens: int) -> tuple[list[Word], list[Word]]:
    """Return the words of so many tokens, and the rest."""
    count = 0
    place = 0
    while place < len(words) and count < num_tokens:
        count += len(words[place].tokens)
        place += 1
    return list(words[:place]), list(words[place:])


def _within(word: Word, start_s: float, end_s: float) -> Word:
    start = min(max(word.start_s, start_s), end_s)
    return replace(word, start_s=start, end_s=min(max(word.end_s, start), end_s))
