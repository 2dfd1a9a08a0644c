"""Where utterances begin and end: by silence, by the caller, at the end, and where they get too long."""

import random

import pytest

from worker.events import SegmentEnd
from worker.speech.live_turns import CHUNK, MAX_LENGTH, TAIL, Turn, Turns

RATE_HZ = 16_000
HALF_SECOND = RATE_HZ // 2


def chunks(seconds: float) -> int:
    return round(seconds * RATE_HZ / CHUNK)


def play(turns: Turns, *stretches: tuple[float, float]) -> list[Turn]:
    """Judge stretches of (probability, seconds); return the turns that began."""
    begun: list[Turn] = []
    for probability, seconds in stretches:
        for _ in range(chunks(seconds)):
            turns.judge(probability)
            begun += turns.begun
            turns.begun.clear()
    return begun


def seconds_of(turn: Turn) -> tuple[float, float, float, float]:
    end = -1 if turn.end is None else turn.end
    return tuple(round(place / RATE_HZ, 2) for place in (turn.start, turn.speech_start, turn.speech_end, end))  # pyright: ignore[reportReturnType]


def test_silence_has_no_turn() -> None:
    turns = Turns(HALF_SECOND)
    assert play(turns, (0.05, 10), (0.49, 10), (0.3, 5)) == []
    assert turns.changes == []
    assert turns.floor >= 24 * RATE_HZ


def test_a_sound_of_less_than_a_quarter_second_is_no_speech() -> None:
    turns = Turns(HALF_SECOND)
    assert play(turns, (0.05, 1), *((0.9, 0.16), (0.05, 0.3)) * 20) == []


def test_a_turn_begins_a_little_before_the_speech_and_ends_with_the_silence_that_was_asked_for() -> None:
    turns = Turns(HALF_SECOND)
    (turn,) = play(turns, (0.05, 2.016), (0.9, 1.024), (0.05, 0.49))
    assert turn.end is None
    play(turns, (0.05, 0.03))
    assert seconds_of(turn) == (1.77, 2.02, 3.04, 3.55)
    assert turn.reason is SegmentEnd.SILENCE
    assert turns.changes == [(True, turn.speech_start), (False, turn.speech_end)]


def test_a_pause_that_is_shorter_ends_nothing() -> None:
    turns = Turns(HALF_SECOND)
    (turn,) = play(turns, (0.9, 1), (0.05, 0.45), (0.9, 1), (0.05, 0.45), (0.9, 1))
    assert turn.end is None
    assert [is_speech for is_speech, _ in turns.changes] == [True]


def test_doubtful_sound_goes_on_as_speech_but_does_not_begin_as_such() -> None:
    turns = Turns(HALF_SECOND)
    (turn,) = play(turns, (0.9, 0.512), (0.4, 1.024), (0.1, 0.256), (0.4, 0.512))
    assert seconds_of(turn)[2:] == (1.54, 2.05)


def test_turns_do_not_overlap() -> None:
    turns = Turns(RATE_HZ // 10)
    first, second = play(turns, (0.9, 1.024), (0.05, 0.16), (0.9, 1.024), (0.05, 0.5))
    assert first.speech_end + TAIL == second.start


def test_the_caller_ends_a_turn_where_it_is_and_the_next_begins_there() -> None:
    turns = Turns(HALF_SECOND)
    (first,) = play(turns, (0.9, 2.048))
    turns.finalize(turns.position + 100)
    assert (first.end, first.reason) == (turns.position + 100, SegmentEnd.CLIENT_FINALIZED)
    (second,) = play(turns, (0.9, 1.024))
    assert second.start == first.end
    assert play(turns, (0.05, 1)) == []
    assert second.reason is SegmentEnd.SILENCE


def test_finalizing_in_silence_does_nothing() -> None:
    turns = Turns(HALF_SECOND)
    play(turns, (0.05, 2))
    turns.finalize(turns.position)
    assert turns.current is None
    assert play(turns, (0.05, 2)) == []


def test_what_is_left_of_a_word_behind_a_finalization_is_no_turn() -> None:
    turns = Turns(HALF_SECOND)
    play(turns, (0.9, 1))
    turns.finalize(turns.position)
    assert play(turns, (0.9, 0.16), (0.05, 1)) == []


def test_the_end_of_the_audio_ends_a_turn() -> None:
    turns = Turns(HALF_SECOND)
    (turn,) = play(turns, (0.9, 1.024))
    turns.finish(turns.position - 100)
    assert (turn.end, turn.speech_end) == (turns.position - 100, turns.position - 100)
    assert turn.reason is SegmentEnd.END_OF_AUDIO
    assert turns.changes[-1] == (False, turns.position - 100)


def test_a_long_turn_ends_in_a_pause_that_would_not_end_a_short_one() -> None:
    turns = Turns(HALF_SECOND)
    (first,) = play(turns, (0.9, 17), (0.05, 0.32), (0.05, 0.1))
    assert first.reason is SegmentEnd.MAX_LENGTH
    assert not first.is_cut
    assert [is_speech for is_speech, _ in turns.changes] == [True]


def test_a_turn_without_a_pause_is_cut_and_the_next_begins_there() -> None:
    turns = Turns(HALF_SECOND)
    first, second = play(turns, (0.9, 30))
    assert first.end == second.start
    assert first.is_cut
    assert first.reason is SegmentEnd.MAX_LENGTH
    assert (first.end or 0) - first.start <= MAX_LENGTH + CHUNK


def test_silence_that_is_nothing_at_all_is_passed_in_one_go() -> None:
    turns = Turns(HALF_SECOND)
    (turn,) = play(turns, (0.9, 1))
    turns.pass_silence(10**9)
    assert turn.reason is SegmentEnd.SILENCE
    assert turns.position == chunks(1) * CHUNK + 10**9 * CHUNK
    assert turns.changes[-1] == (False, turn.speech_end)


@pytest.mark.parametrize("seed", range(40))
def test_turns_come_in_order_cover_all_speech_and_stay_short_whatever_the_voice_does(seed: int) -> None:
    draws = random.Random(seed)
    turns = Turns(draws.choice([RATE_HZ // 10, HALF_SECOND, 3 * RATE_HZ]))
    begun: list[Turn] = []
    spoken: list[int] = []
    for _ in range(60):
        probability = draws.choice([0.05, 0.3, 0.9, 0.95])
        for _ in range(draws.randint(1, 120)):
            spoken += [turns.position] if probability >= 0.5 and turns.current is not None else []
            begun += play(turns, (probability, CHUNK / RATE_HZ))
        if draws.random() < 0.1:
            turns.finalize(turns.position + draws.randint(0, CHUNK - 1))
    turns.finish(turns.position)
    ends = [turn.end for turn in begun]
    assert None not in ends, f"seed {seed}"
    starts = [turn.start for turn in begun]
    # All but the tail behind the speech is a turn's alone.
    assert all((turn.speech_end <= start) for turn, start in zip(begun, starts[1:], strict=False)), f"seed {seed}"
    assert all((turn.end or 0) - turn.start <= MAX_LENGTH + CHUNK for turn in begun), f"seed {seed}"
    assert all(any(turn.start <= at < (turn.end or 0) for turn in begun) for at in spoken), f"seed {seed}"
    assert [is_speech for is_speech, _ in turns.changes] == [True, False] * (len(turns.changes) // 2), f"seed {seed}"
