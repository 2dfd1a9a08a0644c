"""Words that no mouth could form, with silence around them, were not said."""

from collections.abc import Sequence

import pytest

from models.whisper.inventions import first_invention, is_invented
from models.whisper.segments import Stretch
from models.whisper.words import Word
from tests.models.whisper.test_segments import TOKENIZER, heard, spans, transcript


def word(text: str, start_s: float, end_s: float, probability: float = 0.9) -> Word:
    return Word(text, tuple(TOKENIZER.encode(text)), start_s, end_s, probability)


SPOKEN = [word(" ab", 3, 3.3), word(" cd", 3.3, 3.8)]
STRANGE = [word(" ab", 12, 12.02, 0.1), word(" cd", 12.02, 12.04, 0.1)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        (SPOKEN, False),
        (STRANGE, True),
        ([word(" ab", 3, 9)], True),
        ([word(" ab", 3, 5.5, 0.9), *SPOKEN], False),
        ([word(" .", 3, 9, 0.01)], False),
        ([*SPOKEN * 4, *STRANGE], False),
    ],
    ids=["none", "said", "unlikely and short", "endless", "one slow word", "a mark alone", "only behind eight words"],
)
def test_strange_words_are_known(words: Sequence[Word], expected: bool) -> None:
    assert is_invented(words) == expected


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([SPOKEN], None),
        ([SPOKEN, STRANGE], 1),
        ([SPOKEN, [], STRANGE], 2),
        ([SPOKEN, [word(" ef", 10, 11.8)], STRANGE], None),
        ([SPOKEN, STRANGE, [word(" ef", 12.5, 13)]], None),
        ([SPOKEN, STRANGE, [word(" ef", 16, 17)]], 1),
    ],
    ids=["said", "alone", "behind one without words", "right behind words", "right before words", "between silences"],
)
def test_silence_must_stand_on_both_sides(segments: Sequence[Sequence[Word]], expected: int | None) -> None:
    assert first_invention(segments, (0.0, 30.0), 0.0, 2.0) == expected


def test_what_was_invented_is_dropped_and_what_follows_is_heard_again() -> None:
    whole = transcript(12_000, has_words=True, max_silence_s=2.0)
    found = heard(3, " ab cd", 4, 12, " ef gh", 13, 18, " ij", 20)
    words = [
        *(word(" ab", 3, 3.4), word(" cd", 3.4, 3.9)),
        *(word(" ef", 12, 12.02, 0.1), word(" gh", 12.02, 12.04, 0.1)),
        word(" ij", 18, 18.5),
    ]
    assert [text for _, _, text in spans(whole.accept(found, words))] == [" ab cd"]
    assert whole.next == Stretch(1200, 3000)


def test_every_segment_is_believed_unless_it_is_asked_for() -> None:
    whole = transcript(12_000, has_words=True)
    found = heard(3, " ab", 4, 12, " ef", 13, 13)
    words = [word(" ab", 3, 3.4), word(" ef", 12, 12.02, 0.1)]
    assert [text for _, _, text in spans(whole.accept(found, words))] == [" ab", " ef"]


def test_a_window_that_begins_with_an_invention_still_goes_on() -> None:
    whole = transcript(12_000, has_words=True, max_silence_s=2.0)
    found = heard(0, " ef", 1)
    assert whole.accept(found, [word(" ef", 0, 0.02, 0.1)]) == []
    assert whole.next == Stretch(100, 3000)
