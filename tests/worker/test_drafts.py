import random

import pytest

from worker.drafts import FIRST_DRAFT_TOKENS, LONGEST_PAUSE_TOKENS, MAX_NGRAM, Drafter

ENDLESS = 1000


def drafter(text: str, max_tokens: int = 10) -> Drafter:
    return Drafter(map(ord, text), max_tokens)


def draft(subject: Drafter, limit: int = ENDLESS) -> str:
    return "".join(map(chr, subject.draft(limit)))


def grown(text: str, num_successes: int = 5) -> Drafter:
    """Return a drafter that was right so often that it guesses as much as it may."""
    subject = drafter(text)
    for _ in range(num_successes):
        subject.judge(1, 1)
    return subject


def test_what_followed_before_is_the_guess():
    assert draft(drafter("one two three one two")) == " th"


def test_the_longest_match_wins():
    assert draft(drafter("abcX...bcY...cZ...abc")) == "X.."


@pytest.mark.parametrize("text", ["", "a", "abcdef"])
def test_nothing_is_guessed_where_nothing_was_said_before(text: str):
    assert draft(drafter(text)) == ""


def test_of_equal_matches_the_latest_wins():
    assert draft(drafter("abcX. abcY. abc")) == "Y. "


def test_a_guess_that_reaches_the_end_goes_on_with_itself():
    assert draft(grown("xyababab")) == "ababababab"
    assert draft(grown("aa")) == "a" * 10


def test_output_counts_like_the_prompt():
    subject = drafter("abc")
    for character in "dXab":
        subject.add(ord(character))
    assert draft(subject) == "cdX"


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_no_guess_is_longer_than_the_room(limit: int):
    assert len(draft(drafter("abababab"), limit)) == max(0, limit)


@pytest.mark.parametrize("max_tokens", [1, 2, 10])
def test_no_guess_is_longer_than_asked_for(max_tokens: int):
    subject = drafter("abababab", max_tokens)
    for _ in range(10):
        assert len(draft(subject)) <= max_tokens
        subject.judge(1, 1)
    assert len(draft(subject)) == max_tokens


def test_guesses_grow_with_success():
    subject, lengths = drafter("abababab"), list[int]()
    for _ in range(4):
        lengths.append(len(draft(subject)))
        subject.judge(lengths[-1], lengths[-1])
    assert lengths == [FIRST_DRAFT_TOKENS, 6, 10, 10]


def test_a_guess_that_was_right_in_part_is_tried_a_little_longer_than_it_was_right():
    subject = grown("abababab")
    subject.judge(10, 4)
    assert len(draft(subject)) == 5


def test_after_a_failure_it_pauses_and_longer_after_each():
    subject, pauses = drafter("abababab"), list[int]()
    for _ in range(8):
        assert draft(subject) != ""
        subject.judge(1, 0)
        pauses.append(0)
        while draft(subject) == "":
            subject.add(ord("a"))
            pauses[-1] += 1
    assert pauses == [2, 4, 8, 16, 32, 64, 64, 64]
    assert max(pauses) == LONGEST_PAUSE_TOKENS


def test_a_success_ends_the_line_of_failures():
    subject = drafter("abababab")
    for num_accepted in (0, 0, 1, 0):
        subject.judge(1, num_accepted)
    assert draft(subject) == ""
    for _ in range(2):
        subject.add(ord("a"))
    assert len(draft(subject)) == 1


@pytest.mark.parametrize("seed", range(30))
def test_every_guess_is_what_a_plain_search_finds(seed: int):
    dice = random.Random(seed)
    tokens = [dice.randrange(4) for _ in range(dice.randint(0, 40))]
    subject = Drafter(tokens, 10)
    for _ in range(3):
        subject.judge(1, 1)
    found = list(subject.draft(10))
    assert found == searched(tokens, 10), f"seed {seed}"


def searched(tokens: list[int], num_tokens: int) -> list[int]:
    """Return what followed the latest earlier occurrence of the longest ending that has one; slow and plain."""
    for size in range(min(MAX_NGRAM, len(tokens)), 0, -1):
        ending = tokens[-size:]
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == ending:
                period = tokens[start:]
                return (period * num_tokens)[:num_tokens]
    return []
