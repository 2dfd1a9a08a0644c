"""A file from its audio to its segments, with windows that say what a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from models.whisper.decoding import WindowText, compression_ratio
from models.whisper.words import Word
from tests.worker.ticking import Clock
from worker import errors
from worker.audio.errors import AudioNotStored, AudioTooLong, AudioUnreadable
from worker.audio.pcm import Floats
from worker.errors import AudioUndecodable, InvalidField, WorkerError
from worker.events import LanguageFound, SegmentEnd, SpeechEvent, SpeechProgress, SpeechSegment
from worker.speech.file import FileTranscriber
from worker.speech.loaded import LoadedSpeech
from worker.speech.options import SpeechOptions

from .driving import GREEDY, Sound, noise, request, silence, tiny_speech

# Text of a window, with times in seconds from its start.
Said = str | float


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LoadedSpeech:
    """A tiny model whose windows are 30 seconds."""
    return tiny_speech(tmp_path_factory.mktemp("whisper") / "long", n_audio_ctx=1500, n_text_ctx=448)


@dataclass
class Stage:
    """Hears a sound with windows that say what a script says.

    Attributes:
        script: what is said in the window that starts at a second; nothing elsewhere.
        windows: (start, length) in seconds of those that were heard.
        contexts: what each was told before.
    """

    speech: LoadedSpeech
    sound: Sound
    options: SpeechOptions = GREEDY
    script: Callable[[float], Sequence[Said]] = lambda _: (0.0, "hello there", 2.0)
    is_whole: bool = True
    words: Callable[[tuple[int, ...]], list[Word]] | None = None
    windows: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    contexts: list[str] = field(default_factory=list[str])
    events: list[SpeechEvent] = field(default_factory=list[SpeechEvent])
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        asked = request(self.sound, self.options, is_whole=self.is_whole)
        self.transcriber = FileTranscriber(asked, self.speech, self.clock)

    def run(self) -> list[SpeechSegment]:
        """Hear all that can be heard, and return the segments so far."""
        while self.step():
            pass
        return [event for event in self.events if isinstance(event, SpeechSegment)]

    def step(self) -> bool:
        """Listen, hear what is ready, take the events; return whether there was any of it."""
        has_more = self.transcriber.listen()
        hearings: list[Any] = []
        while (hearing := self.transcriber.next()) is not None:
            hearings.append(hearing)
        for hearing in hearings:
            self._hear(hearing)
        self.clock.now += 0.1
        events = self.transcriber.take_events()
        self.events += events
        return has_more or bool(hearings) or bool(events)

    def _hear(self, hearing: Any) -> None:
        stretch = hearing._strand.transcript.next
        languages = hearing.languages
        decoding = hearing.begin({languages[1]: 0.7, languages[0]: 0.2} if languages else None)
        self.windows.append((stretch.start_s, stretch.duration_s))
        self.contexts.append(self.speech.tokenizer.decode(decoding.prompt))
        text = self._text(self.script(stretch.start_s))
        tokens = hearing.spoken(text)
        hearing.end(text, self.words(tokens) if self.words and tokens else None)

    def _text(self, said: Sequence[Said]) -> WindowText:
        tokenizer = self.speech.tokenizer
        tokens: list[int] = []
        for each in said:
            if isinstance(each, str):
                tokens += tokenizer.encode(f" {each}")
            else:
                tokens.append(tokenizer.first_time + round(each / 0.02))
        text = tokenizer.decode(tokens).strip()
        facts: dict[str, Any] = {"avg_logprob": -0.3, "no_speech_prob": 0.0, "temperature": 0.0, "is_accepted": True}
        return WindowText(
            tuple(tokens), text, compression_ratio=compression_ratio(text), alternatives=(("other", -0.5),), **facts
        )


def heard(speech: LoadedSpeech, samples: Floats, options: SpeechOptions = GREEDY, **told: Any) -> Stage:
    stage = Stage(speech, Sound.of(samples), options, **told)
    stage.run()
    assert stage.transcriber.is_complete
    return stage


def found(stage: Stage) -> list[SpeechSegment]:
    return [event for event in stage.events if isinstance(event, SpeechSegment)]


def spans(stage: Stage) -> list[tuple[float, float]]:
    return [(segment.start_s, segment.end_s) for segment in found(stage)]


def assert_in_order(segments: Sequence[SpeechSegment], duration_s: float) -> None:
    end_s = 0.0
    for segment in segments:
        assert end_s <= segment.start_s < segment.end_s <= duration_s
        end_s = segment.end_s
        for word in segment.words:
            assert segment.start_s <= word.start_s <= word.end_s <= segment.end_s


def test_windows_go_on_where_the_last_whole_segment_ended(whole: LoadedSpeech):
    def script(start_s: float) -> Sequence[Said]:
        return (0.0, "one two", 5.0, 5.0, "three four", 12.0, 12.0, "five")

    stage = heard(whole, noise(40), script=script)
    assert stage.windows[:3] == [(0.0, 30.0), (12.0, 28.0), (24.0, 16.0)]
    segments = found(stage)
    assert [segment.stable_text for segment in segments[:2]] == ["one two", " three four"]
    assert [segment.segment_id for segment in segments] == list(range(len(segments)))
    assert segments[-1].end is SegmentEnd.END_OF_AUDIO
    assert {segment.end for segment in segments[:-1]} == {SegmentEnd.TIMESTAMP}
    assert_in_order(segments, 40.0)


def test_an_end_behind_the_audio_is_its_end(whole: LoadedSpeech):
    assert spans(heard(whole, noise(5), script=lambda _: (0.0, "hello there", 29.98))) == [(0.0, 5.0)]


@pytest.mark.parametrize("end_s", [10.0, 10.001, 12.0, 99.0, None])
def test_a_last_clip_to_the_end_or_beyond_ends_there(whole: LoadedSpeech, end_s: float | None):
    stage = heard(whole, noise(10), replace(GREEDY, clips=((4.0, end_s),)))
    assert stage.windows == [(4.0, 6.0)]
    assert spans(stage) == [(4.0, 6.0)]


def test_a_clip_that_is_too_short_for_a_word_is_passed_over(whole: LoadedSpeech):
    stage = heard(whole, noise(10), replace(GREEDY, clips=((1.0, 1.01), (2.0, 4.0))))
    assert stage.windows == [(2.0, 2.0)]


@pytest.mark.parametrize("conditions", [True, False])
def test_times_of_clips_are_those_of_the_audio(whole: LoadedSpeech, conditions: bool):
    options = replace(GREEDY, clips=((0.0, 5.0), (6.0, 15.0)), conditions_on_previous=conditions)
    stage = heard(whole, noise(20), options, script=lambda _: (0.0, "hello", 3.0))
    assert spans(stage) == [(0.0, 3.0), (6.0, 9.0)]
    assert [segment.segment_id for segment in found(stage)] == [0, 1]


def test_clips_are_heard_side_by_side_where_none_needs_another(whole: LoadedSpeech):
    options = replace(GREEDY, clips=((0.0, 5.0), (6.0, 9.0), (9.0, 12.0)), conditions_on_previous=False)
    stage = Stage(whole, Sound.of(noise(20)), options)
    while not stage.windows:
        stage.step()
    assert stage.windows == [(0.0, 5.0), (6.0, 3.0), (9.0, 3.0)]


def test_a_clip_outside_the_audio_is_refused(whole: LoadedSpeech):
    options = replace(GREEDY, clips=((0.0, 1.0), (11.0, 12.0)))
    with pytest.raises(InvalidField, match="the audio ends at 10 s") as raised:
        Stage(whole, Sound.of(noise(10)), options).run()
    assert raised.value.field == "config.clips[1].start_offset"


def test_a_segment_without_text_takes_no_words_of_the_next(whole: LoadedSpeech):
    def words(tokens: tuple[int, ...]) -> list[Word]:
        return [
            Word(whole.tokenizer.decode([token]), (token,), 3 + n / 2, 3.4 + n / 2, 0.9)
            for n, token in enumerate(tokens)
        ]

    def script(_: float) -> Sequence[Said]:
        return (0.0, 2.0, 2.0, "hello there", 6.0)

    stage = heard(whole, noise(8), replace(GREEDY, has_words=True), script=script, words=words)
    (segment,) = found(stage)
    assert segment.stable_text == "hello there"
    assert "".join(word.text for word in segment.words) == segment.stable_text
    assert_in_order([segment], 8.0)


def test_a_loop_is_neither_told_nor_fed_back(whole: LoadedSpeech):
    def script(start_s: float) -> Sequence[Said]:
        return (0.0, "real words", 4.0, 4.0, *["thank you"] * 60) if start_s == 0 else (0.0, "more", 1.0)

    stage = heard(whole, noise(33), script=script)
    assert all("thank" not in segment.stable_text for segment in found(stage))
    assert all("thank" not in context for context in stage.contexts)


def test_silence_after_speech_is_silence(whole: LoadedSpeech):
    filtered = replace(GREEDY, filters_voice=True)
    heard(whole, noise(5), filtered)
    stage = heard(whole, silence(60), filtered)
    assert (stage.windows, found(stage)) == ([], [])
    assert stage.transcriber.usage().speech_s == 0


def test_of_separate_channels_the_most_speech_counts(whole: LoadedSpeech):
    asked = replace(GREEDY, filters_voice=True, separates=True)
    stage = Stage(whole, Sound.of(noise(5), noise(5)), asked)
    stage.run()
    usage = stage.transcriber.usage()
    assert usage.speech_s == pytest.approx(5, abs=0.1)
    assert usage.speech_s is not None
    assert usage.speech_s <= usage.audio_s


def test_windows_start_where_speech_does(whole: LoadedSpeech):
    samples = np.concatenate([silence(20), noise(3), silence(40), noise(2), silence(5)])
    stage = heard(whole, samples, replace(GREEDY, filters_voice=True), script=lambda _: (0.0, "hello", 3.3, 3.3))
    assert [start for start, _ in stage.windows] == pytest.approx([19.8, 62.8], abs=0.1)
    assert [start for start, _ in spans(stage)] == pytest.approx([19.8, 62.8], abs=0.1)


def test_what_is_said_while_nobody_speaks_is_dropped_and_not_fed_back(whole: LoadedSpeech):
    samples = np.concatenate([noise(5), silence(25), noise(10)])

    def script(start_s: float) -> Sequence[Said]:
        return (0.0, "spoken", 5.0, 5.0, "imagined", 20.0, 20.0) if start_s == 0 else (0.0, "again", 5.0)

    stage = heard(whole, samples, replace(GREEDY, filters_voice=True), script=script)
    assert "imagined" not in "".join(segment.stable_text for segment in found(stage))
    assert all("imagined" not in context for context in stage.contexts)
    unfiltered = heard(whole, samples, GREEDY, script=script)
    assert "imagined" in "".join(segment.stable_text for segment in found(unfiltered))


def test_windows_without_any_sound_are_passed_over_though_nobody_looks_for_speech(whole: LoadedSpeech):
    sound = Sound.of(noise(1), is_complete=False)
    sound.recordings[0].skip(600 * 16_000)
    sound.append(noise(1), is_last=True)
    stage = Stage(whole, sound, GREEDY)
    stage.run()
    assert [start for start, _ in stage.windows] == [0.0, 600.0]
    assert stage.transcriber.is_complete


def test_the_language_is_found_once_and_by_one_window(whole: LoadedSpeech):
    options = replace(GREEDY, languages=("de", "fr"), conditions_on_previous=False, clips=((0.0, 2.0), (2.0, 4.0)))
    stage = Stage(whole, Sound.of(noise(10)), options)
    while not stage.windows:
        stage.step()
    assert stage.windows == [(0.0, 2.0)]
    stage.run()
    assert [event for event in stage.events if isinstance(event, LanguageFound)] == [LanguageFound("fr", 0.7)]
    assert {segment.language for segment in found(stage)} == {"fr"}
    assert isinstance(stage.events[0], LanguageFound)


def test_a_language_that_was_asked_for_is_not_found(whole: LoadedSpeech):
    stage = heard(whole, noise(3), replace(GREEDY, languages=("de",)))
    assert not [event for event in stage.events if isinstance(event, LanguageFound)]
    assert {segment.language for segment in found(stage)} == {"de"}


def test_segments_of_channels_leave_in_order_of_time(whole: LoadedSpeech):
    stage = Stage(
        whole, Sound.of(noise(40), noise(40, seed=1)), script=lambda _: (0.0, "hello", 6.0, 6.0, "more", 9.0, 9.0)
    )
    segments = stage.run()
    assert [segment.start_s for segment in segments] == sorted(segment.start_s for segment in segments)
    assert {segment.channel for segment in segments} == {0, 1}
    for channel in range(2):
        assert_in_order([segment for segment in segments if segment.channel == channel], 40.0)


def test_a_stream_is_heard_while_it_comes_as_if_it_were_there(whole: LoadedSpeech):
    samples = noise(70)

    def script(_: float) -> Sequence[Said]:
        return (0.0, "hello", 14.0, 14.0)

    at_once = heard(whole, samples, is_whole=False, script=script)
    sound = Sound.of(samples[:0], is_complete=False)
    stage = Stage(whole, sound, script=script, is_whole=False)
    num_before_end = 0
    for start in range(0, len(samples), 40_001):
        sound.append(samples[start : start + 40_001])
        num_before_end = len(stage.run())
    assert num_before_end > 0
    assert not stage.transcriber.is_complete
    sound.append(samples[:0], is_last=True)
    stage.run()
    assert stage.transcriber.is_complete
    assert found(stage) == found(at_once)
    assert stage.windows == at_once.windows


def test_audio_that_was_heard_is_let_go_of(whole: LoadedSpeech):
    sound = Sound.of(noise(0), is_complete=False)
    stage = Stage(whole, sound, is_whole=False, script=lambda _: (0.0, "hello", 29.0))
    peak = 0
    for seed in range(12):
        sound.append(noise(15, seed))
        stage.run()
        peak = max(peak, sound.recordings[0].memory_bytes)
    assert peak < 60 * 64_000


def test_times_and_ids_of_a_stream_that_goes_on_are_those_of_its_caller(whole: LoadedSpeech):
    stage = heard(whole, noise(5), replace(GREEDY, time_offset_s=100.5, first_segment_id=7))
    (segment,) = found(stage)
    assert (segment.segment_id, segment.start_s, segment.end_s) == (7, 100.5, 102.5)
    assert segment.stable_text == " hello there"


def test_progress_is_told_about_once_a_second_and_at_the_end(whole: LoadedSpeech):
    stage = heard(whole, noise(45), script=lambda _: (0.0, "hello", 3.0, 3.0))
    progress = [event for event in stage.events if isinstance(event, SpeechProgress)]
    assert progress[-1] == SpeechProgress(45.0, 45.0)
    assert 2 <= len(progress) <= (stage.clock.now - 100) + 2
    assert [each.processed_s for each in progress] == sorted(each.processed_s for each in progress)


def test_other_texts_of_a_window_come_with_its_first_segment(whole: LoadedSpeech):
    def script(_: float) -> Sequence[Said]:
        return (0.0, "one", 2.0, 2.0, "two", 4.0)

    stage = heard(whole, noise(5), replace(GREEDY, num_beams=2, max_alternatives=1), script=script)
    assert [segment.alternatives for segment in found(stage)] == [(("other", -0.5),), ()]


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.05])
def test_next_to_nothing_is_complete(whole: LoadedSpeech, seconds: float):
    stage = heard(whole, noise(seconds), replace(GREEDY, filters_voice=True), script=lambda _: ("It is long.",))
    assert found(stage) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AudioUnreadable("no audio"), AudioUndecodable),
        (AudioTooLong(5.0), errors.AudioTooLong),
        (AudioNotStored(), errors.AudioNotStored),
        (RuntimeError("no"), errors.InternalError),
    ],
)
def test_what_is_wrong_with_the_audio_ends_the_request(whole: LoadedSpeech, error: Any, kind: type[WorkerError]):
    sound = Sound.of(noise(1), is_complete=False)
    sound.recordings[0].end(error)
    with pytest.raises(kind):
        Stage(whole, sound).run()


def test_nothing_is_complete_before_it_is_known_how_many_channels_there_are(whole: LoadedSpeech):
    stage = Stage(whole, Sound(()))
    assert stage.run() == []
    assert not stage.transcriber.is_complete
