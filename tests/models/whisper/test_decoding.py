"""Windows from prompt to text: tries, thresholds, prompts, languages, and windows decoded together."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.step import NumericPath
from models.whisper.decoding import (
    Decoding,
    DecodingOptions,
    WindowText,
    compression_ratio,
    context_tokens,
    language_probabilities,
)
from models.whisper.session import Session, Window, advance
from tests.models.whisper.hearing import load, picture
from tests.models.whisper.oracle import mlx_whisper_module
from tests.models.whisper.test_tokenizer import tiny
from tests.support.tiny_whisper import SIZES, write_mlx

TOKENIZER = tiny()
FIRST, END, V = TOKENIZER.first_time, TOKENIZER.end, TOKENIZER.vocab_size
NUM_POSITIONS = 448


def play(decoding: Decoding, scripts: Sequence[Sequence[int]], no_speech: float = -9.0) -> list[list[list[int]]]:
    """Answer each try with the logits of a script of tokens and the end; return what was wanted."""
    wanted: list[list[list[int]]] = []
    script: list[int] = []
    tries = iter(scripts)
    while decoding.result is None:
        wanted.append(decoding.wanted)
        if decoding.is_fresh:
            script = [*next(tries), END]
        rows = np.zeros((len(decoding.wanted), len(decoding.wanted_logits), V), np.float32)
        rows[:, -1, script.pop(0)] = 40
        if decoding.is_fresh:
            rows[:, 0, TOKENIZER.no_speech] = no_speech
        decoding.advance(rows)
    return wanted


def decoding(context: Sequence[int] = (), **options: Any) -> Decoding:
    return Decoding(TOKENIZER, DecodingOptions(language="en", **options), NUM_POSITIONS, context)


TEXT = [FIRST, *TOKENIZER.encode("quiteanotherthing"), FIRST + 100]
LOOP = [FIRST, *TOKENIZER.encode("loop" * 40), FIRST + 100]


def test_a_text_that_passes_is_taken_at_the_first_try() -> None:
    plain = decoding()
    wanted = play(plain, [TEXT])
    assert plain.result is not None
    assert plain.result.tokens == tuple(TEXT)
    assert plain.result.text == "quiteanotherthing"
    assert (plain.result.temperature, plain.result.is_accepted) == (0, True)
    assert wanted[:2] == [[[50_258, 50_259, 50_359]], [[FIRST]]]


def test_a_text_that_repeats_itself_is_tried_again_warmer() -> None:
    repeated = decoding()
    play(repeated, [LOOP, LOOP, TEXT])
    assert repeated.result is not None
    assert repeated.result.temperature == 0.4
    assert repeated.result.text == "quiteanotherthing"


def test_where_no_try_passes_the_best_is_given_and_marked() -> None:
    hopeless = decoding(temperatures=(0.0, 0.2))
    play(hopeless, [LOOP, LOOP])
    assert hopeless.result is not None
    assert not hopeless.result.is_accepted
    assert hopeless.result.compression_ratio > 2.4


def test_a_text_that_repeats_itself_is_not_taken_for_one_that_is_only_unlikely() -> None:
    mixed = decoding(temperatures=(0.0, 0.2), min_avg_logprob=1.0)
    play(mixed, [TEXT, LOOP])
    assert mixed.result is not None
    assert mixed.result.text == "quiteanotherthing"


def test_silence_is_not_tried_again() -> None:
    silent = decoding(min_avg_logprob=1.0)
    play(silent, [TEXT], no_speech=20)
    assert silent.result is not None
    assert silent.result.no_speech_prob > 0.99
    assert silent.result.is_silence(DecodingOptions(min_avg_logprob=1.0))


def test_likely_text_is_no_silence_whatever_the_model_thinks_of_it() -> None:
    loud = decoding()
    play(loud, [TEXT], no_speech=20)
    assert loud.result is not None
    assert not loud.result.is_silence(DecodingOptions())


def test_a_text_ends_where_the_room_does() -> None:
    endless = decoding(temperatures=(0.0,), max_compression_ratio=None)
    play(endless, [[FIRST, *range(300, 300 + 400)]])
    assert endless.result is not None
    assert len(endless.result.tokens) == NUM_POSITIONS // 2


def test_the_prompt_is_the_end_of_what_was_said_before() -> None:
    before = list(range(1000, 1500))
    assert decoding(before).prompt == [TOKENIZER.previous, *before[-223:], 50_258, 50_259, 50_359]
    assert decoding(before).wanted_logits == (224, 226)


def test_a_text_that_fails_is_tried_without_what_was_said_before_and_then_warmer() -> None:
    before = TOKENIZER.encode("loop")
    astray = decoding(before)
    wanted = play(astray, [LOOP, TEXT])
    prompts = [rows[0] for rows in wanted if len(rows[0]) > 1]
    assert prompts == [[TOKENIZER.previous, *before, 50_258, 50_259, 50_359], [50_258, 50_259, 50_359]]
    assert astray.result is not None
    assert (astray.result.temperature, astray.result.is_told) == (0, False)
    hopeless = decoding(before)
    play(hopeless, [LOOP, LOOP, TEXT])
    assert hopeless.result is not None
    assert (hopeless.result.temperature, hopeless.result.is_told) == (0.2, False)


@pytest.mark.parametrize(("lift", "is_told"), [(40, True), (10.7, False)], ids=["likely", "hardly heard"])
def test_what_was_said_before_is_believed_again_where_it_is_heard_again(lift: float, is_told: bool) -> None:
    before = TOKENIZER.encode("quiteanotherthing")
    again = decoding(before)
    scripts = iter([*TEXT, END])
    while again.result is None:
        rows = np.zeros((1, len(again.wanted_logits), V), np.float32)
        token = next(scripts, None)
        if token is None:
            scripts = iter([*TEXT, END])
            token = next(scripts)
        rows[0, -1, token] = lift
        again.advance(rows)
    assert again.result.is_told == is_told
    assert again.result.text == "quiteanotherthing"


def decoding_behind(prefix: Sequence[int], **options: Any) -> Decoding:
    chosen = DecodingOptions(language="en", temperatures=(0.0,), **options)
    return Decoding(TOKENIZER, chosen, NUM_POSITIONS, (), prefix)


def test_a_text_begins_with_its_prefix_which_is_computed_with_the_prompt() -> None:
    begun = decoding_behind([FIRST, *TOKENIZER.encode("quite")])
    wanted = play(begun, [[*TOKENIZER.encode("another"), FIRST + 100]])
    assert wanted[0] == [[50_258, 50_259, 50_359, FIRST, *TOKENIZER.encode("quite")]]
    assert begun.result is not None
    assert begun.result.tokens == (FIRST, *TOKENIZER.encode("quite"), *TOKENIZER.encode("another"), FIRST + 100)
    assert begun.result.text == "quiteanother"


def test_a_prefix_without_times_starts_at_nought_where_the_text_has_times() -> None:
    words = TOKENIZER.encode("quite")
    assert decoding_behind(words).prompt == [50_258, 50_259, 50_359, FIRST, *words]
    assert decoding_behind(words, with_times=False).prompt == [50_258, 50_259, 50_359, 50_363, *words]
    timed = [FIRST + 3, *words, FIRST + 9]
    assert decoding_behind(timed, with_times=False).prompt == decoding_behind(words, with_times=False).prompt


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_text_may_end_right_behind_its_prefix(num_beams: int) -> None:
    begun = decoding_behind([FIRST, *TOKENIZER.encode("quite"), FIRST + 40], num_beams=num_beams, patience=0.1)
    play(begun, [[]])
    assert begun.result is not None
    assert begun.result.text == "quite"
    assert begun.result.avg_logprob == pytest.approx(0, abs=1e-6)


def test_times_behind_a_prefix_go_on_where_its_own_end() -> None:
    begun = decoding_behind([FIRST + 10, *TOKENIZER.encode("quite"), FIRST + 40])
    rows = np.zeros((1, 2, V), np.float32)
    rows[:, -1, FIRST + 39] = 50
    rows[:, -1, FIRST + 41] = 40
    begun.advance(rows)
    assert begun.wanted == [[FIRST + 41]]


def test_a_prefix_takes_of_the_room_of_the_text() -> None:
    endless = decoding_behind([FIRST, *range(300, 320)], max_compression_ratio=None)
    play(endless, [range(320, 320 + 400)])
    assert endless.result is not None
    assert len(endless.result.tokens) == NUM_POSITIONS // 2


@pytest.mark.parametrize("prefix", [[300] * 224, [50_258], [V]], ids=["too long", "control", "beyond"])
def test_a_prefix_that_is_no_beginning_of_a_text_is_refused(prefix: list[int]) -> None:
    with pytest.raises(ValueError, match="a prefix"):
        decoding_behind(prefix)


def test_phrases_come_before_what_was_said_and_take_half_of_the_room_at_most() -> None:
    previous = list(range(1000, 1500))
    context = context_tokens(TOKENIZER, NUM_POSITIONS, previous, ["abc", "xyz"])
    phrases = TOKENIZER.encode(" abc") + TOKENIZER.encode(", xyz")
    assert context == [*phrases, *previous[-(223 - len(phrases)) :]]
    many = context_tokens(TOKENIZER, NUM_POSITIONS, previous, ["a~b~c~d"] * 100)
    assert len(many) == 223
    assert 100 < sum(token < 300 for token in many) <= 111
    assert context_tokens(TOKENIZER, NUM_POSITIONS, []) == []


def test_languages_are_ranked_among_those_in_question() -> None:
    logits = np.full(V, 90, np.float32)
    logits[[TOKENIZER.language_id(code) for code in TOKENIZER.languages]] = 0
    logits[TOKENIZER.language_id("de")], logits[TOKENIZER.language_id("fr")] = 3, 2
    found = language_probabilities(logits, TOKENIZER)
    assert list(found)[:2] == ["de", "fr"]
    assert sum(found.values()) == pytest.approx(1)
    assert list(language_probabilities(logits, TOKENIZER, ["en", "fr"])) == ["fr", "en"]


def test_compression_tells_loops_from_speech() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio("so " * 60) > 2.4 > compression_ratio("and so it came that nobody had thought of it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mlx(tmp_path_factory.mktemp("whisper") / "tiny")


OPTIONS = {
    "greedy": DecodingOptions(language="en", temperatures=(0.0,)),
    "without times": DecodingOptions(language="en", temperatures=(0.0,), with_times=False),
    "by chance": DecodingOptions(language="en", temperatures=(0.7,), best_of=3, seed=5),
    "beams": DecodingOptions(language="en", temperatures=(0.0,), num_beams=3, patience=2.0, length_penalty=0.6),
    "beams, then by chance": DecodingOptions(language="en", temperatures=(0.0, 0.5), num_beams=2, min_avg_logprob=9.0),
}


def decode(folder: Path, jobs: Sequence[tuple[int, DecodingOptions]], path: NumericPath) -> list[WindowText]:
    """Decode windows together; a job is the seed of what it hears, and how."""
    loaded = load(folder, path)
    session = Session(loaded.model, is_reference=path is NumericPath.REFERENCE)
    memories = session.hear([picture(seed)[0] for seed, _ in jobs])
    windows = [
        Window(memory, Decoding(loaded.tokenizer, options, SIZES["n_text_ctx"], [700] * seed))
        for memory, (seed, options) in zip(memories, jobs, strict=True)
    ]
    while any(window.decoding.result is None for window in windows):
        advance(session, windows)
    return [result for window in windows if (result := window.decoding.result) is not None]


def test_windows_decoded_together_have_the_texts_of_windows_decoded_alone(folder: Path) -> None:
    jobs = list(enumerate(OPTIONS.values()))
    together = decode(folder, jobs, NumericPath.FAST)
    assert together == [decode(folder, [job], NumericPath.FAST)[0] for job in jobs]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_fast_and_reference_path_write_the_same_tokens(folder: Path, options: DecodingOptions) -> None:
    fast, reference = (decode(folder, [(2, options)], path)[0] for path in (NumericPath.FAST, NumericPath.REFERENCE))
    assert fast.tokens == reference.tokens
    assert fast.avg_logprob == pytest.approx(reference.avg_logprob, abs=1e-4)


@pytest.mark.parametrize("path", NumericPath)
def test_a_text_goes_on_behind_its_own_beginning_as_before(folder: Path, path: NumericPath) -> None:
    whole = decode(folder, [(2, OPTIONS["greedy"])], path)[0].tokens
    loaded = load(folder, path)
    session = Session(loaded.model, is_reference=path is NumericPath.REFERENCE)
    memories = session.hear([picture(2)[0]] * 3)
    windows = [
        Window(memory, Decoding(loaded.tokenizer, OPTIONS["greedy"], SIZES["n_text_ctx"], [700] * 2, whole[:length]))
        for memory, length in zip(memories, (1, 3, 6), strict=True)
    ]
    while any(window.decoding.result is None for window in windows):
        advance(session, windows)
    assert [window.decoding.result.tokens for window in windows if window.decoding.result] == [whole] * 3


@pytest.mark.parametrize("seed", range(3))
def test_greedy_tokens_are_those_of_mlx_whisper(folder: Path, seed: int) -> None:
    their_options = mlx_whisper_module("decoding").DecodingOptions
    their_decode = mlx_whisper_module("decoding").decode
    load_model = mlx_whisper_module("load_models").load_model

    # Without times: with them mlx-whisper may forbid everything, and then writes token 0.
    shared: dict[str, Any] = {
        "language": "en",
        "suppress_blank": False,
        "suppress_tokens": [42],
        "prompt": [700] * seed,
    }
    options = their_options(fp16=False, without_timestamps=True, **shared)
    theirs = their_decode(load_model(str(folder)), picture(seed)[0], options)
    controls = [token for token in TOKENIZER.suppressed() if token > END]
    changes: dict[str, Any] = {"with_times": False, "suppressed": (42, *controls), "suppresses_blank": False}
    ours = decode(folder, [(seed, dataclasses.replace(OPTIONS["greedy"], **changes))], NumericPath.REFERENCE)[0]
    assert list(ours.tokens) == theirs.tokens
    assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-5)
    assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, rel=1e-4)


def test_language_is_that_of_mlx_whisper(folder: Path) -> None:
    detect_language = mlx_whisper_module("decoding").detect_language
    load_model = mlx_whisper_module("load_models").load_model

    _, expected = detect_language(load_model(str(folder)), picture(4)[0])
    loaded = load(folder)
    session = Session(loaded.model, is_reference=True)
    (logits,) = session.language_logits(session.hear([picture(4)[0]]), TOKENIZER.start)
    found = language_probabilities(logits, TOKENIZER)
    assert next(iter(found)) == max(expected, key=expected.get)
    assert [found[code] for code in expected] == pytest.approx(list(expected.values()), rel=1e-3)
