"""What becomes stable text: it only grows, whatever a model says, and never is a loop."""

import random
from collections.abc import Sequence

import pytest

from models.whisper.tokenizer import WhisperTokenizer
from tests.models.whisper.test_tokenizer import tiny
from worker.speech.live_agreement import Agreement, Piece, pieces_of, trusted_part
from worker.speech.live_loops import loop_start, lost_start, repeated_tail

TOKENIZER = tiny()
WORDS = ("the", "cat", "sat", "on", "a", "mat", "thank", "you", "über", "日本", "no")
MARKS = ("", "", "", ",", ".", "?")


def stable_after(*texts: str) -> str:
    agreement = Agreement()
    for text in texts:
        agreement.hear(pieces_of(TOKENIZER.split_words(TOKENIZER.encode(text), "en")))
    return TOKENIZER.decode(agreement.tokens)


def test_one_hypothesis_is_nobodys() -> None:
    assert stable_after(" and so it goes") == ""


def test_what_two_share_is_stable_but_for_their_last_words() -> None:
    assert stable_after(" and so it", " and so it goes on") == " and so"
    assert stable_after(" and so it goes", " and so it goes") == " and so it"


def test_a_word_that_was_not_whole_yet_is_not_stable() -> None:
    assert stable_after(" and so for", " and so forward we") == " and so"


def test_case_and_punctuation_do_not_part_words_and_the_newer_is_taken() -> None:
    assert stable_after(" well the cat sat", " Well, the Cat sat.") == " Well, the Cat"


def test_punctuation_behind_the_last_agreed_word_waits() -> None:
    assert stable_after(" it is so. And", " it is so, and on") == " it is so"


def test_a_hypothesis_that_does_not_begin_with_the_stable_text_counts_for_nothing() -> None:
    assert stable_after(" and so it goes", " and so it goes", " but no it is", " but no it is") == " and so it"


@pytest.mark.parametrize("phrase", [" thank you", " thank you for watching", " you", " Thank you."])
@pytest.mark.parametrize("rounds", [4, 9, 30])
def test_a_loop_that_both_repeat_is_never_stable(phrase: str, rounds: int) -> None:
    looping = phrase * rounds
    stable = stable_after(f" so it is{looping}", f" so it is{looping}", f" so it is{looping}{phrase}")
    assert stable.casefold().count(" thank") + stable.casefold().count(" you") <= len(phrase.split())
    assert stable.startswith(" so it is")


def test_a_loop_that_begins_slowly_is_stable_in_no_second_round() -> None:
    texts = [" so" + " thank you" * rounds for rounds in (1, 2, 3, 4, 5, 6)]
    assert stable_after(*texts) == " so thank you"


def test_words_that_are_said_twice_are_stable_once_others_follow() -> None:
    assert stable_after(" very very", " very very good it", " very very good it is") == " very very good"


# A letter is a word.
def test_a_repeated_end_is_where_its_second_round_begins() -> None:
    assert repeated_tail("abtyty") == 4
    assert repeated_tail("tytyt") == 2
    assert repeated_tail("abcc") == 3
    assert repeated_tail("nnnn") == 1
    assert repeated_tail("abac") is None
    assert repeated_tail("") is None


def test_a_loop_needs_three_rounds_and_one_word_four() -> None:
    assert loop_start("sabababxy") == 3
    assert loop_start("snnnxy") is None
    assert loop_start("snnnnxy") == 2


def test_only_a_long_loop_was_certainly_not_said() -> None:
    assert lost_start("nnnnnnn") is None
    assert lost_start("nnnnnnnn") == 1
    assert lost_start("sabababab") == 3
    assert lost_start("ababab") is None


def growing(draws: random.Random, rounds: int) -> list[str]:
    """Return hypotheses that change their mind, repeat themselves, and break off words."""
    truth = [draws.choice(WORDS) for _ in range(40)]
    texts: list[str] = []
    for number in range(rounds):
        words = truth[: number * 3 + 1]
        for place in range(len(words)):
            if draws.random() < 0.15:
                words[place] = draws.choice(WORDS)
        if draws.random() < 0.2:
            words += [draws.choice(WORDS), draws.choice(WORDS)] * draws.randint(2, 8)
        texts.append("".join(f" {word}{draws.choice(MARKS)}" for word in words)[: draws.randint(1, 400)])
    return texts


def changes(agreement: Agreement, texts: list[str], tokenizer: WhisperTokenizer, *, is_forced: bool) -> int:
    """Play hypotheses to an agreement; return how often its text became another than one that begins with the last."""
    last, num_changes = "", 0
    for text in texts:
        tokens = [*agreement.tokens, *tokenizer.encode(text)] if is_forced else tokenizer.encode(text)
        agreement.hear(pieces_of(tokenizer.split_words(tokens, "en")))
        stable = tokenizer.decode(agreement.tokens)
        num_changes += not stable.startswith(last)
        last = stable
    return num_changes


@pytest.mark.parametrize("seed", range(60))
def test_stable_text_never_changes_whatever_the_hypotheses_are(seed: int) -> None:
    texts = growing(random.Random(seed), 12)
    assert changes(Agreement(), texts, TOKENIZER, is_forced=False) == 0, f"seed {seed}"
    assert changes(Agreement(), texts, TOKENIZER, is_forced=True) == 0, f"seed {seed}"


class Careless(Agreement):
    """Takes the newest hypothesis for stable."""

    def hear(self, pieces: Sequence[Piece]) -> None:
        self.tokens = tuple(token for piece in pieces for token in piece.tokens)


def test_the_random_hypotheses_catch_an_agreement_that_changes_its_mind() -> None:
    caught = [
        seed for seed in range(60) if changes(Careless(), growing(random.Random(seed), 12), TOKENIZER, is_forced=False)
    ]
    assert len(caught) == 60


def test_a_text_of_nothing_but_marks_is_not_trusted() -> None:
    assert trusted_part(pieces_of([("!", [1]), ("?", [2])])) == ()
