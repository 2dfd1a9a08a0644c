"""Which language a stream is in."""

from worker.speech.live_language import LanguageChoice

KNOWN = ("en", "de", "fr")


def test_one_language_that_was_asked_for_is_believed() -> None:
    choice = LanguageChoice(["de"], KNOWN)
    assert choice.among is None
    assert choice.choose(None, 5) == "de"
    assert not choice.settle("de")


def test_an_english_only_model_has_no_question() -> None:
    choice = LanguageChoice([], [])
    assert (choice.among, choice.choose(None, 5)) == (None, None)


def test_the_likeliest_is_taken_until_there_is_text_in_one() -> None:
    choice = LanguageChoice([], KNOWN)
    assert choice.among == KNOWN
    assert choice.choose({"fr": 0.4, "en": 0.3}, 0.5) == "fr"
    assert choice.choose({"en": 0.5, "fr": 0.3}, 1.5) == "en"
    assert choice.settle("en")
    assert not choice.settle("en")


def test_among_several_that_were_asked_for() -> None:
    assert LanguageChoice(["de", "fr"], KNOWN).among == ("de", "fr")


def test_another_language_takes_over_only_where_it_is_clear_and_there_is_enough_of_it() -> None:
    choice = LanguageChoice([], KNOWN)
    choice.settle("en")
    assert choice.choose({"de": 0.7, "en": 0.2}, 10) == "en"
    assert choice.choose({"de": 0.95, "en": 0.02}, 1) == "en"
    assert choice.choose({"de": 0.95, "en": 0.02}, 3) == "de"
