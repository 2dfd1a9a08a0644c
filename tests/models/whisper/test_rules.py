"""What may be written next."""

import numpy as np
import pytest

from models.whisper.rules import Rules, log_probabilities
from tests.models.whisper.test_tokenizer import tiny

TOKENIZER = tiny()
FIRST, END, V = TOKENIZER.first_time, TOKENIZER.end, TOKENIZER.vocab_size


def allowed(written: list[int], *, with_times: bool = True, logits: np.ndarray | None = None) -> np.ndarray:
    """Return bool [V]."""
    rows = np.zeros((1, V), np.float32) if logits is None else logits[None].astype(np.float32)
    # Text and an end that are likelier than all times together, so that these are not preferred.
    if logits is None:
        rows[0, [700, END]] = 50
    Rules(TOKENIZER, with_times=with_times, suppressed=[42]).apply(rows, [written])
    return rows[0] > -np.inf


def times(mask: np.ndarray) -> np.ndarray:
    return mask[FIRST:]


def test_a_transcript_starts_with_a_time_of_the_first_second() -> None:
    mask = allowed([])
    assert not mask[:FIRST].any()
    assert np.flatnonzero(times(mask)).tolist() == list(range(51))


def test_after_a_first_time_comes_text() -> None:
    mask = allowed([FIRST + 3])
    assert not times(mask).any()
    assert mask[700]
    assert mask[END]


def test_after_text_may_come_text_or_a_later_time() -> None:
    mask = allowed([FIRST + 3, 700])
    assert mask[700]
    assert np.flatnonzero(times(mask)).min() == 4


def test_after_a_closing_time_comes_a_time_or_the_end() -> None:
    mask = allowed([FIRST + 3, 700, FIRST + 9])
    assert not mask[:END].any()
    assert mask[END]
    assert np.flatnonzero(times(mask)).min() == 9


def test_after_a_pair_of_times_comes_text() -> None:
    mask = allowed([FIRST + 3, 700, FIRST + 9, FIRST + 9])
    assert not times(mask).any()
    assert mask[700]


def test_times_are_written_where_together_they_are_likelier_than_any_text() -> None:
    logits = np.zeros(V)
    logits[700] = 5  # e^5 is less than 1,500 times e^0, more than 100 times
    assert not allowed([FIRST, 1], logits=logits)[:FIRST].any()
    logits[700] = 8
    assert allowed([FIRST, 1], logits=logits)[700]


def test_some_tokens_are_never_written_and_blanks_not_at_first() -> None:
    space = TOKENIZER.encode(" ")[0]
    start = allowed([], with_times=False)
    assert not start[[42, space, END]].any()
    later = allowed([700], with_times=False)
    assert not later[42]
    assert later[[space, END]].all()
    assert not allowed([FIRST, 700])[TOKENIZER.no_times]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_logits_something_may_follow_and_times_never_run_backwards(seed: int) -> None:
    draws = np.random.default_rng(seed)
    rules = Rules(TOKENIZER, with_times=True)
    written: list[int] = []
    for _ in range(60):
        rows = draws.normal(0, 3, (1, V)).astype(np.float32)
        rows[0, FIRST:] += draws.choice([-9, 0, 9])
        rules.apply(rows, [written])
        written.append(int(rows[0].argmax()))
        assert rows[0, written[-1]] > -np.inf
    said = [token - FIRST for token in written if token >= FIRST]
    assert said == sorted(said)
    assert said, f"seed {seed} wrote no time"


def test_log_probabilities_add_up_to_one() -> None:
    logits = np.array([[1.0, 2.0, -np.inf], [500.0, 0.0, 1.0]], np.float32)
    assert np.exp(log_probabilities(logits)).sum(axis=-1) == pytest.approx([1, 1])
