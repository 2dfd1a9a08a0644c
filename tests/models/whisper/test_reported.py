"""What went wrong in other programs: clips at the end, segments without words, times behind the end, and loops.

A stub answers for the decoder, so that it can say what a real one says once in a thousand recordings.
Reports: mlx-examples#1256, faster-whisper#697, #768, #1157, #1334 and #1376, whisper.cpp#3595, WhisperLiveKit#339.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from models.whisper.decoding import Decoding, WindowText
from models.whisper.segments import Segment, Stretch, Transcript
from models.whisper.words import Word
from tests.models.whisper.test_decoding import TOKENIZER, decoding, play
from tests.models.whisper.test_segments import heard, transcript

FIRST = TOKENIZER.first_time
Answer = Callable[[Stretch], WindowText]


def run(whole: Transcript, answer: Answer, *, has_words: bool = False) -> tuple[list[Stretch], list[Segment]]:
    """Let the stub answer every window; return the windows and the segments."""
    stretches: list[Stretch] = []
    segments: list[Segment] = []
    while (stretch := whole.next) is not None:
        assert len(stretches) < 100, "it goes on for ever"
        stretches.append(stretch)
        found = answer(stretch)
        words = evenly(whole.spoken(found), stretch.duration_s) if has_words else None
        segments += whole.accept(found, words)
    return stretches, segments


def evenly(tokens: Sequence[int], duration_s: float) -> list[Word]:
    """Return a word for each token, one behind the other."""
    each = duration_s / max(1, len(tokens))
    return [
        Word(TOKENIZER.decode([token]), (token,), place * each, (place + 1) * each, 0.9)
        for place, token in enumerate(tokens)
    ]


def assert_sound(segments: Sequence[Segment], duration_s: float) -> None:
    last_s = 0.0
    for segment in segments:
        assert last_s <= segment.start_s <= segment.end_s <= duration_s
        for word in segment.words:
            assert segment.start_s <= word.start_s <= word.end_s <= segment.end_s
        last_s = segment.end_s


@pytest.mark.parametrize("has_words", [False, True])
@pytest.mark.parametrize(
    ("clips", "windows"),
    [
        ([(2000, 3000)], [Stretch(2000, 1000)]),
        ([(2000, 9999)], [Stretch(2000, 1000)]),
        ([(500, 500)], []),
        ([(500, 400)], []),
        ([(3000, 4000)], []),
        ([(500, 500), (1000, 1200), (2900, 3000)], [Stretch(1000, 200), Stretch(2900, 100)]),
    ],
    ids=["ends with the recording", "ends behind it", "empty", "backwards", "behind it", "empty before others"],
)
def test_clips_end_where_the_recording_does(
    clips: list[tuple[int, int]], windows: list[Stretch], has_words: bool
) -> None:
    whole = transcript(3000, clips, has_words=has_words)
    stretches, segments = run(whole, lambda _: heard(0, " one", 30), has_words=has_words)
    assert stretches == windows
    assert len(segments) == len(windows)
    assert_sound(segments, 30.0)


@pytest.mark.parametrize("has_words", [False, True])
def test_clips_are_shifted_once(has_words: bool) -> None:
    whole = transcript(2000, [(0, 500), (600, 1500)], has_words=has_words)
    stretches, segments = run(whole, lambda _: heard(1, " one", 4), has_words=has_words)
    assert stretches == [Stretch(0, 500), Stretch(600, 900)]
    assert_sound(segments, 20.0)
    assert segments[0].end_s <= 5
    assert 6 <= segments[1].start_s < segments[1].end_s <= 15
    assert has_words or [segment.end_s for segment in segments] == [4, 10]


def test_words_stay_with_their_segment_where_one_before_has_none() -> None:
    whole = transcript(3000, has_words=True)
    found = heard(0, 2, 2, " ab", 6, 6, 8, 8, " cd", 12, 12)
    _, segments = run(whole, lambda _: found, has_words=True)
    pairs = [(segment.text, [word.text for word in segment.words]) for segment in segments[:2]]
    assert pairs == [(" ab", [" ab"]), (" cd", [" cd"])]
    assert_sound(segments, 30.0)


@pytest.mark.parametrize("has_words", [False, True])
def test_an_end_behind_the_recording_is_its_end(has_words: bool) -> None:
    whole = transcript(3000, has_words=has_words)
    late = WindowText((FIRST, *TOKENIZER.encode(" one"), FIRST + 1550), " one", -0.2, 0.0, 1.0, 0.0, is_accepted=True)
    _, segments = run(whole, lambda _: late, has_words=has_words)
    assert segments[0].end_s == 30.0
    assert_sound(segments, 30.0)


def silent_after_speech() -> Answer:
    answers = iter([heard(0, " good words", 4, 30)])
    silence = heard(0, " good words", 4, no_speech_prob=0.95, avg_logprob=-1.4)
    return lambda _: next(answers, silence)


def test_silence_after_speech_is_nothing_and_never_the_text_before() -> None:
    _, segments = run(transcript(12_000), silent_after_speech())
    assert [segment.text for segment in segments] == [" good words"]


def test_a_decoder_that_copies_the_text_before_over_silence_is_not_believed() -> None:
    before = [*TOKENIZER.encode("goodwords")]
    copying = decoding(before)
    # Hardly likely, and silence once nothing is there to copy.
    answer_likeliest(copying, [[FIRST, *before, FIRST + 100], []], lift=10.3)
    assert copying.result is not None
    assert copying.result.text == ""
    assert not copying.result.is_told


def answer_likeliest(copying: Decoding, scripts: Sequence[Sequence[int]], lift: float) -> None:
    """Answer each try with a script, its tokens so much likelier than the others; then with the end."""
    tries = iter(scripts)
    script: list[int] = []
    while copying.result is None:
        if copying.is_fresh:
            script = [*next(tries)]
        rows = np.zeros((len(copying.wanted), len(copying.wanted_logits), TOKENIZER.vocab_size), np.float32)
        if script:
            rows[:, -1, script.pop(0)] = lift
        else:
            rows[:, -1, FIRST if copying.is_fresh else TOKENIZER.end] = lift
        copying.advance(rows)


def test_a_loop_is_neither_kept_nor_told_to_the_next_window() -> None:
    whole = transcript(12_000)
    loop = heard(0, *[" thank you"] * 60)
    stretches, segments = run(whole, lambda stretch: heard(0, " good words", 30) if not stretch.start_frame else loop)
    assert [segment.text for segment in segments] == [" good words"]
    assert len(stretches) == 4
    assert whole.decoding().prompt == [50_258, 50_259, 50_359]


def test_a_loop_in_every_try_is_marked_and_said_by_none() -> None:
    looping = decoding(TOKENIZER.encode("good"))
    loop = [FIRST, *TOKENIZER.encode("thankyou" * 24)]
    play(looping, [loop] * 7)
    assert looping.result is not None
    assert not looping.result.is_accepted
    assert looping.result.compression_ratio > 2.4
    assert transcript().accept(looping.result) == []
