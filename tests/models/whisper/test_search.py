"""Greedy, by chance, and beams, on a language of five tokens whose probabilities are known."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from models.whisper.search import BeamSearch, Sampling, Search, Text, rank

END, V = 4, 5


def random_language(seed: int) -> Callable[[list[int]], np.ndarray]:
    """Return what gives the logits after a text; they hang on all of it."""

    def logits(tokens: list[int]) -> np.ndarray:
        draws = np.random.default_rng([seed, 1, *tokens])
        return draws.normal(0, 1.5, V).astype(np.float32)

    return logits


def run(search: Search, language: Callable[[list[int]], np.ndarray], max_tokens: int = 4) -> list[Text]:
    while search.written and len(search.written[0]) < max_tokens:
        before = [list(tokens) for tokens in search.written]
        search.choose(np.stack([language(tokens) for tokens in before]))
        # What goes on is what its parent was, and one token.
        for tokens, parent in zip(search.written, search.parents, strict=True):
            assert list(tokens[:-1]) == before[parent]
    return search.finish()


def logprob(language: Callable[[list[int]], np.ndarray], tokens: tuple[int, ...], *, ended: bool = True) -> float:
    total = 0.0
    for place, token in enumerate([*tokens, END] if ended else tokens):
        logits = language(list(tokens[:place])).astype(np.float64)
        total += logits[token] - math.log(np.exp(logits).sum())
    return total


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_likeliest_each_time(seed: int) -> None:
    language = random_language(seed)
    (text,) = run(Sampling(END), language)
    for place, token in enumerate(text.tokens):
        assert token == language(list(text.tokens[:place])).argmax()
    assert text.sum_logprob == pytest.approx(logprob(language, text.tokens, ended=len(text.tokens) < 4), abs=1e-5)


def test_the_first_of_equals_is_taken() -> None:
    (text,) = run(Sampling(END), lambda _: np.array([0, 1, 1, 0, -9], np.float32), max_tokens=2)
    assert text.tokens == (1, 1)


def test_chance_follows_the_probabilities_at_its_temperature() -> None:
    logits = np.array([0.0, 1.0, 2.0, -np.inf, -np.inf], np.float32)
    texts = run(Sampling(END, 4000, 0.5, np.random.default_rng(1)), lambda _: logits, max_tokens=1)
    counts = np.bincount([text.tokens[0] for text in texts], minlength=V) / 4000
    expected = np.exp(logits.astype(np.float64) / 0.5)
    assert counts == pytest.approx(expected / expected.sum(), abs=0.03)
    assert texts[0].sum_logprob == pytest.approx(logprob(lambda _: logits, texts[0].tokens, ended=False), abs=1e-5)


def test_chance_repeats_itself_for_a_seed() -> None:
    first, again = (run(Sampling(END, 5, 1.0, np.random.default_rng(7)), random_language(0)) for _ in range(2))
    assert first == again


def best_of_all(language: Callable[[list[int]], np.ndarray], max_tokens: int) -> Text:
    ended = [
        Text(tokens, logprob(language, tokens))
        for length in range(max_tokens)
        for tokens in itertools.product(range(END), repeat=length)
    ]
    return max(ended, key=lambda text: text.sum_logprob)


@pytest.mark.parametrize("seed", range(8))
def test_enough_beams_find_the_likeliest_text_of_all(seed: int) -> None:
    language = random_language(seed)
    found = run(BeamSearch(END, 400, patience=1.0), language, max_tokens=5)
    best = max((text for text in found if len(text.tokens) < 5), key=lambda text: text.sum_logprob)
    expected = best_of_all(language, 5)
    assert best.tokens == expected.tokens, f"seed {seed}"
    assert best.sum_logprob == pytest.approx(expected.sum_logprob, abs=1e-5)


def test_one_beam_is_greedy() -> None:
    for seed in range(6):
        language = random_language(seed)
        assert run(BeamSearch(END, 1), language)[0].tokens == run(Sampling(END), language)[0].tokens


@pytest.mark.parametrize(("patience", "wanted"), [(0.5, 2), (1.0, 4), (2.0, 8)])
def test_patience_says_how_many_texts_must_end(patience: float, wanted: int) -> None:
    found = run(BeamSearch(END, 4, patience), random_language(3), max_tokens=30)
    assert sum(1 for text in found if len(text.tokens) < 30) == wanted


def test_beams_never_take_what_may_not_come() -> None:
    only = np.array([-np.inf, 0.0, -np.inf, -np.inf, -np.inf], np.float32)
    found = run(BeamSearch(END, 3), lambda _: only, max_tokens=3)
    assert [text.tokens for text in found] == [(1, 1, 1)]


def test_ranks_by_length_or_by_a_penalty() -> None:
    short, long = Text((1,), -2.0), Text((1,) * 8, -6.0)
    assert rank([short, long], None)[0] is long  # -2 and -0.75 a token
    assert rank([short, long], 0.0)[0] is short  # sums alone
    assert rank([short, long], 1.0)[0] is short  # -2 and -6 / (13 / 6)
    assert rank([Text((), -0.1), short], None)[0] is short
