"""Words of an utterance in time, and where one without a pause is cut."""

from models.whisper.words import Word
from worker.speech.live_words import cut_behind, placed_words


def words(*spans: tuple[str, float, float]) -> list[Word]:
    return [Word(text, (number, number), start, end, 0.9) for number, (text, start, end) in enumerate(spans)]


def test_words_are_told_in_seconds_of_the_recording_with_their_marks() -> None:
    placed = placed_words(words((" so", 0.2, 0.5), (" it", 0.5, 0.9), (".", 0.9, 0.95)), 6, 10.0, (10.2, 11.0), 9.0)
    assert [(word.text, round(word.start_s, 2), round(word.end_s, 2)) for word in placed] == [
        (" so", 10.2, 10.5),
        (" it.", 10.5, 10.9),
    ]


def test_words_run_forward_within_the_utterance() -> None:
    placed = placed_words(words((" a", -1, 0.1), (" b", 0.0, 0.4), (" c", 0.3, 9.0)), 6, 10.0, (10.0, 11.0), 9.9)
    times = [time for word in placed for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert times[0] >= 9.9
    assert times[-1] <= 11.0


def test_words_beyond_the_text_are_left_out() -> None:
    placed = placed_words(words((" a", 0, 0.5), (" b", 0.5, 1)), 3, 0.0, (0, 1), 0.0)
    assert [word.text for word in placed] == [" a"]


def test_the_cut_is_in_the_widest_gap_near_the_end() -> None:
    spoken = words((" a", 0, 1), (" b", 15, 19.5), (" c", 20.0, 21), (" d", 21.1, 22), (" e", 22.1, 24))
    assert cut_behind(spoken, 0, 24.0) == (4, 19.75)


def test_stable_words_stay_before_the_cut() -> None:
    spoken = words((" a", 0, 19.5), (" b", 20.0, 21), (" c", 21.1, 22), (" d", 22.05, 24))
    assert cut_behind(spoken, 4, 24.0)[0] == 4
    assert cut_behind(spoken, 5, 24.0)[0] == 6


def test_a_mark_stays_with_its_word() -> None:
    spoken = words((" a", 18, 20), (".", 21, 21.1), (" b", 21.2, 24))
    assert cut_behind(spoken, 0, 24.0)[0] == 4


def test_what_cannot_be_cut_stays_whole() -> None:
    assert cut_behind(words((" a", 0, 24)), 0, 24.0) == (2, 24.0)
    assert cut_behind([], 0, 24.0) == (0, 24.0)
