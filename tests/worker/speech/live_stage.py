"""A stage for live transcription without sound: who speaks when is a script, and so is what a hearing makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.whisper.decoding import WindowText, compression_ratio
from models.whisper.words import Word
from tests.models.whisper.test_tokenizer import tiny
from worker.audio.pcm import Floats
from worker.audio.recording import Recording
from worker.events import SpeechEvent, SpeechProgress, SpeechSegment
from worker.speech.live import LiveTranscriber
from worker.speech.live_hearing import LiveHearing
from worker.speech.options import LiveOptions, SpeechOptions
from worker.speech.request import SpeechRequest

RATE_HZ = 16_000
TOKENIZER = tiny()
LIVE = LiveOptions(interim_results=True)
ENGLISH = SpeechOptions(languages=("en",), live=LIVE, conditions_on_previous=False)


@dataclass(frozen=True)
class Said:
    """A word of the script."""

    text: str
    start_s: float
    end_s: float


def speech(text: str, start_s: float, word_s: float = 0.4) -> list[Said]:
    """Return words that follow one another without a pause."""
    words = text.split()
    return [Said(f" {word}", start_s + n * word_s, start_s + (n + 1) * word_s) for n, word in enumerate(words)]


def window_text(text: str, prefix: Sequence[int] = (), **facts: Any) -> WindowText:
    """Return what a window said, beginning with a prefix."""
    before = TOKENIZER.decode(prefix)
    rest = text.removeprefix(before)
    tokens = (*prefix, *TOKENIZER.encode(rest)) if rest else tuple(prefix)
    said = TOKENIZER.decode(tokens).strip()
    known: dict[str, Any] = {"avg_logprob": -0.3, "no_speech_prob": 0.0, "temperature": 0.0, "is_accepted": True}
    return WindowText(tokens, said, compression_ratio=compression_ratio(said), **(known | facts))


class LoudnessDetector:
    """Takes what is loud for speech."""

    def probabilities(self, samples: Floats) -> Floats:
        assert len(samples) % 512 == 0
        return np.where(samples.reshape(-1, 512).max(axis=1) > 0.4, 0.9, 0.05).astype(np.float32)


@dataclass
class Audio:
    """What an intake has for the engine."""

    recordings: tuple[Recording, ...]


Hears = Callable[[str, LiveHearing], str]


@dataclass
class Stage:
    """Plays a script to a transcriber, some audio at a time.

    Attributes:
        script: what is said.
        options: of the request.
        cost_s: seconds of audio that come while a window is heard.
        step_s: audio that comes at once.
        hears: what a hearing makes of the words that it can hear; None: exactly them, the last one spoilt while cut.
        facts: of every window's text.
        num_channels: that all have the same sound.
    """

    script: list[Said]
    options: SpeechOptions = ENGLISH
    cost_s: float = 0.3
    step_s: float = 0.1
    hears: Hears | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    num_channels: int = 1
    events: list[tuple[float, SpeechEvent]] = field(default_factory=list)
    heard: list[tuple[float, float]] = field(default_factory=list)  # seconds that each hearing began and ended at
    languages: dict[str, float] = field(default_factory=dict)
    contexts: list[str] = field(default_factory=list)  # what each hearing was told before

    def __post_init__(self) -> None:
        self.recordings = tuple(Recording() for _ in range(self.num_channels))
        self.recording = self.recordings[0]
        self.request = SpeechRequest("r", self.options, Audio(self.recordings))
        self.transcriber = LiveTranscriber(self.request, TOKENIZER, 448, lambda samples: samples, LoudnessDetector)
        self._open: list[tuple[LiveHearing, float]] = []

    @property
    def now_s(self) -> float:
        return self.recording.num_samples / RATE_HZ

    @property
    def finals(self) -> list[SpeechSegment]:
        return [event for _, event in self.events if isinstance(event, SpeechSegment) and event.is_final]

    @property
    def interims(self) -> list[SpeechSegment]:
        return [event for _, event in self.events if isinstance(event, SpeechSegment) and not event.is_final]

    @property
    def progress(self) -> list[SpeechProgress]:
        return [event for _, event in self.events if isinstance(event, SpeechProgress)]

    @property
    def texts(self) -> list[str]:
        return [segment.stable_text for segment in self.finals]

    def play(self, seconds: float) -> Stage:
        """Let so many seconds of audio come, in real time."""
        stop = self.recording.num_samples + round(seconds * RATE_HZ)
        while self.recording.num_samples < stop:
            count = min(round(self.step_s * RATE_HZ), stop - self.recording.num_samples)
            sound = self._sound_of(self.recording.num_samples, count)
            for recording in self.recordings:
                recording.append(sound)
            self.work()
        return self

    def finish(self) -> Stage:
        """Let the audio end, and everything be heard."""
        for recording in self.recordings:
            recording.end()
        while not self.transcriber.is_complete:
            before = len(self.heard), len(self.events)
            self.work(is_hurried=True)
            assert (len(self.heard), len(self.events)) != before or self.transcriber.is_complete, "it hangs"
        return self

    def work(self, *, is_hurried: bool = False) -> None:
        """Do what the workload does in a tick."""
        while self.transcriber.listen():
            pass
        for hearing, due_s in list(self._open):
            if not hearing.is_wanted or is_hurried or due_s <= self.now_s:
                self._open.remove((hearing, due_s))
                if hearing.is_wanted:
                    self._end(hearing)
        while (hearing := self.transcriber.next()) is not None:
            self._open.append((hearing, self.now_s + self.cost_s))
            self.heard.append((self.now_s, hearing.stop / RATE_HZ))
        self.events += [(self.now_s, event) for event in self.transcriber.take_events()]

    def _sound_of(self, start: int, count: int) -> np.ndarray:
        samples = np.full(count, 0.1, np.float32)
        for word in self.script:
            first, last = (round(time_s * RATE_HZ) - start for time_s in (word.start_s, word.end_s))
            samples[max(0, first) : max(0, last)] = 0.5
        return samples

    def _end(self, hearing: LiveHearing) -> None:
        prompt = hearing.begin(self.languages if hearing.languages is not None else None).prompt
        self.contexts.append(TOKENIZER.decode(prompt[: prompt.index(TOKENIZER.start)]))
        prefix = prompt[prompt.index(TOKENIZER.no_times) + 1 :]
        start_s = hearing.start / RATE_HZ
        audible = [
            word for word in self.script if word.end_s > start_s + 0.02 and word.start_s < hearing.stop / RATE_HZ
        ]
        text = "".join(self._heard_as(word, hearing.stop / RATE_HZ) for word in audible)
        if self.hears is not None:
            text = self.hears(text, hearing)
        found = window_text(text, prefix, **self.facts)
        spoken = hearing.spoken(found)
        hearing.end(found, self._placed(spoken, audible, start_s) if spoken else None)

    def _heard_as(self, word: Said, stop_s: float) -> str:
        return word.text if word.end_s <= stop_s + 0.01 else f"{word.text}x"

    def _placed(self, spoken: Sequence[int], audible: Sequence[Said], start_s: float) -> list[Word]:
        words = TOKENIZER.split_words(spoken, "en")
        return [
            Word(text, tuple(tokens), max(0.0, said.start_s - start_s), said.end_s - start_s, 0.9)
            for (text, tokens), said in zip(words, audible, strict=False)
        ]


def with_live(options: SpeechOptions = ENGLISH, **changes: Any) -> SpeechOptions:
    return replace(options, live=replace(options.live or LIVE, **changes))
