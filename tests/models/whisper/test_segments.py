"""Windows one after the other: where the next starts, what becomes a segment, and what is not believed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from models.whisper.decoding import DecodingOptions, WindowText, compression_ratio
from models.whisper.loops import echo_share, said
from models.whisper.segments import Segment, Stretch, Transcript, TranscriptOptions
from models.whisper.words import Word
from tests.models.whisper.test_tokenizer import tiny

TOKENIZER = tiny()
FIRST = TOKENIZER.first_time
HOUR_FRAMES = 360_000


def transcript(num_frames: int = HOUR_FRAMES, clips: Any = None, **options: Any) -> Transcript:
    chosen = TranscriptOptions(DecodingOptions(language="en"), **options)
    return Transcript(TOKENIZER, chosen, num_frames, 3000, 448, clips)


def heard(*parts: float | str, **facts: Any) -> WindowText:
    """Return a window's text: seconds and words as they follow one another."""
    tokens: list[int] = []
    for part in parts:
        tokens += TOKENIZER.encode(part) if isinstance(part, str) else [FIRST + round(part / 0.02)]
    text = TOKENIZER.decode(tokens)
    known: dict[str, Any] = {"avg_logprob": -0.3, "no_speech_prob": 0.0, "temperature": 0.0, "is_accepted": True}
    return WindowText(tuple(tokens), text, compression_ratio=compression_ratio(text), **(known | facts))


def spans(segments: Sequence[Segment]) -> list[tuple[float, float, str]]:
    return [(round(s.start_s, 2), round(s.end_s, 2), s.text) for s in segments]


def test_the_next_window_starts_where_the_last_whole_segment_ended() -> None:
    whole = transcript()
    assert spans(whole.accept(heard(0, " one", 4, 4.5, " two", 9, 9.2, " cut"))) == [(0, 4, " one"), (4.5, 9, " two")]
    assert whole.next == Stretch(900, 3000)
    assert spans(whole.accept(heard(0.2, " cut off", 5))) == [(9.2, 14, " cut off")]
    assert whole.next == Stretch(3900, 3000)


def test_a_time_alone_at_the_end_settles_the_window() -> None:
    whole = transcript()
    assert spans(whole.accept(heard(0, " one", 4, 4.5, " two", 9))) == [(0, 4, " one"), (4.5, 9, " two")]
    assert whole.next == Stretch(3000, 3000)


def test_a_text_without_times_is_the_whole_window() -> None:
    whole = transcript(1234)
    assert spans(whole.accept(heard(" all of it"))) == [(0, 12.34, " all of it")]
    assert whole.next is None


def test_silence_is_no_segment() -> None:
    whole = transcript()
    assert whole.accept(heard(0, " thank you", 2, no_speech_prob=0.9, avg_logprob=-1.5)) == []
    assert whole.next == Stretch(3000, 3000)


def test_segments_stay_within_the_recording() -> None:
    whole = transcript(250)
    assert spans(whole.accept(heard(0, " one", 1, 1, " two", 29))) == [(0, 1, " one"), (1, 2.5, " two")]


def test_only_clips_are_heard_and_those_outside_are_left_out() -> None:
    whole = transcript(5000, [(100, 200), (300, 301), (4000, 9000), (7000, 8000)])
    stretches = []
    while whole.next is not None:
        stretches.append(whole.next)
        whole.accept(heard(" a"))
    assert stretches == [Stretch(100, 100), Stretch(4000, 1000)]
    assert transcript(0).next is None
    assert transcript(500, [(600, 700)]).next is None


def test_what_was_said_is_told_to_the_next_window() -> None:
    whole = transcript(initial_prompt="first")
    assert whole.decoding().prompt[:-3] == [TOKENIZER.previous, *TOKENIZER.encode(" first")]
    found = heard(0, " one", 4)
    whole.accept(found)
    assert whole.decoding().prompt[:-3] == [TOKENIZER.previous, *TOKENIZER.encode(" first"), *found.tokens]


@pytest.mark.parametrize(
    ("options", "facts"), [({"conditions_on_previous": False}, {}), ({}, {"temperature": 0.8})], ids=["unasked", "warm"]
)
def test_nothing_is_told_where_it_is_not_wanted_or_was_by_chance(
    options: dict[str, Any], facts: dict[str, Any]
) -> None:
    whole = transcript(**options)
    whole.accept(heard(0, " one", 4, **facts))
    assert whole.decoding().prompt == [50_258, 50_259, 50_359]


def test_a_loop_is_cut_at_the_last_time_before_it_and_not_told_to_the_next_window() -> None:
    whole = transcript()
    found = heard(0, " good words", 4, 4, *["again and"] * 60)
    assert spans(whole.accept(found)) == [(0, 4, " good words")]
    assert whole.next == Stretch(400, 3000)
    assert whole.decoding().prompt == [50_258, 50_259, 50_359]


def test_a_loop_with_times_in_it_is_cut_in_its_first_round() -> None:
    whole = transcript()
    rounds = [part for number in range(20) for part in (4 + number / 10, "loop", 4 + number / 10)]
    segments = whole.accept(heard(0, " good words", 4, *rounds))
    assert "".join(segment.text for segment in segments).count("loop") <= 1
    assert segments[0].text == " good words"


def test_a_window_that_is_all_loop_says_nothing() -> None:
    whole = transcript()
    assert whole.accept(heard(0, *["thou art"] * 60)) == []
    assert whole.next == Stretch(3000, 3000)


def test_too_little_for_a_window_is_heard_with_the_segment_before_it() -> None:
    whole = transcript(3030)
    assert spans(whole.accept(heard(0, " one", 20, 21, " two", 29))) == [(0, 20, " one")]
    assert whole.next == Stretch(2100, 930)
    assert spans(whole.accept(heard(0, " two", 8))) == [(21, 29, " two")]
    assert whole.next is None


@pytest.mark.parametrize(("num_frames", "parts"), [(3100, (0, " one", 20, 21, " two", 29)), (3030, (0, " one", 29))])
def test_a_window_is_settled_where_enough_is_left_or_it_has_one_segment(
    num_frames: int, parts: tuple[float | str, ...]
) -> None:
    whole = transcript(num_frames)
    whole.accept(heard(*parts))
    assert whole.next == Stretch(3000, num_frames - 3000)


def test_what_led_a_window_astray_is_forgotten() -> None:
    whole = transcript(initial_prompt="first")
    found = heard(0, " one", 4, is_told=False)
    whole.accept(found)
    assert whole.decoding().prompt[:-3] == [TOKENIZER.previous, *found.tokens]


@pytest.mark.parametrize(
    ("tokens", "before", "share"),
    [
        ([], [1, 2], 0),
        ([1, 2, 3], [], 0),
        ([1, 2, 3], [9, 1, 2, 3], 1),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 4, 5, 6, 0], 0.6),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6], 0),
    ],
)
def test_an_echo_is_what_stands_five_tokens_in_a_row_in_the_text_before(
    tokens: list[int], before: list[int], share: float
) -> None:
    assert echo_share(tokens, before) == share


def test_words_said_three_times_are_no_loop() -> None:
    found = heard(0, " no no no never never never", 3)
    assert said(found.tokens, FIRST) == found.tokens


def test_more_text_than_anyone_can_say_was_not_said() -> None:
    assert transcript(30).accept(heard(0, " thou art now the ornament of the world", 0.3)) == []
    assert len(transcript(300).accept(heard(0, " thou art now the ornament of the world", 3))) == 1


def test_words_go_to_their_segments_and_move_the_next_window() -> None:
    whole = transcript(has_words=True)
    found = heard(0, " ab", 2, 2, " cd", 4, 4, " ef")
    assert TOKENIZER.decode(whole.spoken(found)) == " ab cd"
    words = [
        Word(text, tuple(TOKENIZER.encode(text)), start_s, end_s, 0.9)
        for text, start_s, end_s in ((" ab", 0.4, 0.8), (" cd", 2.6, 3.1))
    ]
    first, second = whole.accept(found, words)
    assert [(w.text, w.start_s, w.end_s) for w in (*first.words, *second.words)] == [
        (" ab", 0.4, 0.8),
        (" cd", 2.6, 3.1),
    ]
    assert (first.start_s, first.end_s, second.end_s) == (0.4, 0.8, 3.1)
    assert whole.next == Stretch(310, 3000)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_windows_say_segments_are_in_order_and_the_end_is_reached(seed: int) -> None:
    draws = np.random.default_rng(seed)
    num_frames = int(draws.integers(0, 20_000))
    whole = transcript(num_frames, has_words=bool(seed % 2))
    last_end_s, num_windows = 0.0, 0
    while (stretch := whole.next) is not None:
        num_windows += 1
        parts = [draws.choice([" a", " bc", "d", float(draws.integers(0, 1501)) * 0.02]) for _ in range(12)]
        found = heard(*(float(part) if part.replace(".", "").isdigit() else part for part in map(str, parts)))
        ids = whole.spoken(found)
        times = sorted(draws.uniform(0, 30, 2 * len(ids)).tolist())
        words = [Word("x", (token,), times[2 * n], times[2 * n + 1], 0.5) for n, token in enumerate(ids)]
        for segment in whole.accept(found, words if seed % 2 else None):
            assert last_end_s <= segment.start_s < segment.end_s <= num_frames / 100 + 1e-9, f"seed {seed}"
            assert all(segment.start_s <= w.start_s <= w.end_s <= segment.end_s for w in segment.words), f"seed {seed}"
            last_end_s = segment.end_s
        assert num_windows <= num_frames, f"seed {seed} goes nowhere"
        assert stretch.num_frames <= 3000
