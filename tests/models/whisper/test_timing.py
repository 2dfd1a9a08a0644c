"""Words in time: warping, medians, heuristics, and mlx-whisper's numbers."""

from pathlib import Path

import numpy as np
import pytest

from models.whisper.decoding import DecodingOptions
from models.whisper.timing import align, median_filter, warp
from models.whisper.words import Pace, Word, merge_punctuation, pace_of, settle, shorten_at_sentence_ends
from tests.models.whisper.hearing import load, picture
from tests.models.whisper.oracle import mlx_whisper_module
from tests.support.tiny_whisper import write_mlx


def word(text: str, start_s: float, end_s: float, probability: float = 0.9) -> Word:
    return Word(text, (1,), start_s, end_s, probability)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (5, 30), (30, 5), (17, 17)])
@pytest.mark.parametrize("seed", range(3))
def test_paths_are_those_of_mlx_whisper(shape: tuple[int, int], seed: int) -> None:
    dtw = mlx_whisper_module("timing").dtw

    costs = np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)
    ours, theirs = warp(costs), dtw(costs)
    assert np.array_equal(ours[0], theirs[0]), f"seed {seed}"
    assert np.array_equal(ours[1], theirs[1]), f"seed {seed}"


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 3, 4), (2, 4, 40)])
def test_medians_are_those_of_mlx_whisper(shape: tuple[int, ...]) -> None:
    oracle = mlx_whisper_module("timing").median_filter

    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    assert np.array_equal(median_filter(values), oracle(values, 7))


@pytest.mark.parametrize("num_frames", [40, 22])
@pytest.mark.filterwarnings("ignore")
def test_words_are_those_of_mlx_whisper(tmp_path: Path, num_frames: int) -> None:
    load_model = mlx_whisper_module("load_models").load_model
    find_alignment = mlx_whisper_module("timing").find_alignment

    folder = write_mlx(tmp_path / "tiny")
    loaded, oracle = load(folder), load_model(str(folder))
    tokens = loaded.tokenizer.encode(" said ab!")
    theirs = find_alignment(oracle, _Splitting(loaded.tokenizer), tokens, picture()[0], num_frames)
    memory = loaded.model.remember(loaded.model.encode(picture()))
    ours = align(loaded.model, loaded.tokenizer, memory, tokens, DecodingOptions(language="en"), num_frames)
    assert [(w.text, list(w.tokens)) for w in ours] == [(w.word, list(w.tokens)) for w in theirs]
    assert [w.start_s for w in ours] == pytest.approx([float(w.start) for w in theirs])
    assert [w.end_s for w in ours] == pytest.approx([float(w.end) for w in theirs])
    assert [w.probability for w in ours] == pytest.approx([float(w.probability) for w in theirs], rel=1e-4)
    assert align(loaded.model, loaded.tokenizer, memory, [], DecodingOptions(language="en"), num_frames) == []


class _Splitting:
    """What mlx-whisper's alignment asks of its tokenizer, answered by ours: the tiny vocabulary is not its own."""

    def __init__(self, tokenizer: object) -> None:
        from models.whisper.tokenizer import Task, WhisperTokenizer

        assert isinstance(tokenizer, WhisperTokenizer)
        self._tokenizer = tokenizer
        self.sot_sequence = tokenizer.prompt("en", Task.TRANSCRIBE, with_times=True)
        self.no_timestamps, self.eot = tokenizer.no_times, tokenizer.end

    def split_to_word_tokens(self, tokens: list[int]) -> tuple[list[str], list[list[int]]]:
        pairs = self._tokenizer.split_words(tokens, "en")
        return [text for text, _ in pairs], [ids for _, ids in pairs]


def test_punctuation_joins_the_words_that_it_opens_and_closes() -> None:
    words = [word(' "', 0, 1), word("Oh", 1, 2), word(",", 2, 3), word(" well", 3, 4), word(".", 4, 5), word('"', 5, 6)]
    merged = merge_punctuation(words)
    assert [(w.text, w.start_s, w.end_s) for w in merged] == [(' "Oh,', 1, 2), (' well."', 3, 4)]
    assert [len(w.tokens) for w in merged] == [3, 3]


def test_long_words_are_cut_where_sentences_end() -> None:
    words = [word("A", 0, 0.4), word(".", 0.4, 5), word(" B", 5, 9), word(" C", 9, 9.4)]
    found = shorten_at_sentence_ends(words, Pace(0.4))
    assert [(w.start_s, w.end_s) for w in found] == [(0, 0.4), (0.4, pytest.approx(1.2)), (8.2, 9), (9, 9.4)]


def test_the_first_word_after_a_pause_does_not_take_it() -> None:
    words, start_s, end_s = settle([word("Oh", 2.0, 9.0), word(" no", 9.0, 9.3)], 2.0, 9.3, 0.0, Pace(0.3))
    assert words[0].start_s == pytest.approx(8.4)
    assert (start_s, end_s) == (pytest.approx(8.4), 9.3)


def test_a_segments_times_are_believed_over_a_words_far_outside() -> None:
    words, start_s, end_s = settle([word("Oh", 1.0, 3.0), word(" no", 3.0, 6.0)], 2.0, 4.0, 0.9, Pace(0.7))
    assert (words[0].start_s, words[-1].end_s) == (2.0, 4.0)
    assert (start_s, end_s) == (2.0, 4.0)


def test_pace_is_the_median_within_reason() -> None:
    assert pace_of([word("a", 0, 0.2), word("b", 1, 1.4), word("c", 2, 2)]).median_s == pytest.approx(0.3)
    assert pace_of([word("a", 0, 4)]).median_s == 0.7
    assert pace_of([]).max_s == 0
