"""Tokens: the ids of mlx-whisper, whichever file the vocabulary stands in."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.errors import CheckpointCorrupt
from models.checkpoint.tokenizer import parse_tokenizer
from models.whisper.config import Config
from models.whisper.languages import LANGUAGES, language_of
from models.whisper.tokenizer import Task, WhisperTokenizer
from models.whisper.vocabulary import read_vocabulary
from tests.models.whisper.oracle import mlx_whisper_module
from tests.support.tiny_whisper import SIZES, tokenizer_json, words

VOCABULARIES = (51_864, 51_865, 51_866)
TEXTS = ["Hello world, it's 2,000 €!", " Ünïcödé ♪♪ 日本語 naïve", "", " <|endoftext|><|en|> said"]


def config_of(n_vocab: int) -> Config:
    return Config.from_checkpoint({**SIZES, "n_vocab": n_vocab})


def assets() -> Path:
    spec = find_spec("mlx_whisper")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "assets")


def real_folder(tmp_path: Path, n_vocab: int) -> Path:
    name = "gpt2.tiktoken" if n_vocab == 51_864 else "multilingual.tiktoken"
    (tmp_path / name).write_bytes((assets() / name).read_bytes())
    return tmp_path


def oracle(n_vocab: int, **options: Any) -> Any:
    get_tokenizer = mlx_whisper_module("tokenizer").get_tokenizer

    config = config_of(n_vocab)
    return get_tokenizer(config.is_multilingual, num_languages=config.num_languages, **options)


def tiny(n_vocab: int = 51_865) -> WhisperTokenizer:
    config = config_of(n_vocab)
    folder_json = tokenizer_json(50_257 if config.is_multilingual else 50_256)
    from models.checkpoint.tokenizer import Tokenizer

    raw = parse_tokenizer(folder_json.encode(), "tokenizer.json")
    return WhisperTokenizer(Tokenizer(raw, file="tokenizer.json", eos_token="<|endoftext|>"), config)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_ids_are_those_of_mlx_whisper(tmp_path: Path, n_vocab: int) -> None:
    config = config_of(n_vocab)
    ours = WhisperTokenizer(read_vocabulary(real_folder(tmp_path, n_vocab), config).tokenizer(), config)
    theirs = oracle(n_vocab)
    assert (ours.end, ours.start, ours.previous) == (theirs.eot, theirs.sot, theirs.sot_prev)
    assert (ours.no_speech, ours.no_times, ours.first_time) == (
        theirs.no_speech,
        theirs.no_timestamps,
        theirs.timestamp_begin,
    )
    specials = {theirs.sot, theirs.sot_prev, theirs.sot_lm, theirs.no_speech, theirs.transcribe, theirs.translate}
    assert ours.suppressed() == sorted({*theirs.non_speech_tokens, *specials})
    assert [ours.encode(text) for text in TEXTS[:3]] == [theirs.encode(text) for text in TEXTS[:3]]
    assert [ours.decode(ours.encode(text)) for text in TEXTS] == TEXTS


@pytest.mark.parametrize("n_vocab", [51_865, 51_866])
@pytest.mark.parametrize("language", ["en", "de", "su"])
@pytest.mark.parametrize("task", Task)
def test_prompts_are_those_of_mlx_whisper(n_vocab: int, language: str, task: Task) -> None:
    theirs = oracle(n_vocab, language=language, task=task.value)
    ours = tiny(n_vocab)
    assert ours.prompt(language, task, with_times=True) == list(theirs.sot_sequence)
    assert ours.prompt(language, task, with_times=False) == list(theirs.sot_sequence_including_notimestamps)


def test_an_english_only_model_takes_no_language_and_no_task() -> None:
    assert tiny(51_864).prompt("en", Task.TRANSLATE, with_times=True) == list(oracle(51_864).sot_sequence)


def test_languages_are_those_of_mlx_whisper() -> None:
    theirs = mlx_whisper_module("tokenizer").LANGUAGES

    assert list(theirs) == list(LANGUAGES)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("en", "en"),
        ("EN-gb", "en"),
        ("pt_BR", "pt"),
        ("cmn-Hans-CN", "zh"),
        ("zh-yue", "yue"),
        ("jv", "jw"),
        ("nb", "no"),
    ],
)
def test_tags_find_their_language(tag: str, code: str) -> None:
    assert language_of(tag) == code


def test_a_language_that_the_model_lacks_is_none() -> None:
    assert [language_of(tag) for tag in ("tlh", "", "english")] == [None, None, None]
    assert language_of("yue", tiny(51_865).languages) is None
    assert language_of("zh-yue", tiny(51_865).languages) == "zh"


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.json", "vocabulary.json", "vocabulary.txt"])
def test_every_kind_of_vocabulary_gives_the_same_ids(tmp_path: Path, file: str) -> None:
    texts = words(50_257)
    contents = {
        "tokenizer.json": tokenizer_json(50_257),
        "vocab.json": json.dumps({text: number for number, text in enumerate([*texts, "<|endoftext|>", "<|en|>"])}),
        "vocabulary.json": json.dumps([*texts, "<|endoftext|>", "<|en|>"]),
        "vocabulary.txt": "\n".join([*texts, "<|endoftext|>", "<|en|>", ""]),
    }
    (tmp_path / file).write_text(contents[file])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{t[:-1]} {t[-1]}" for t in texts[256:]))
    config = config_of(51_865)
    ours = WhisperTokenizer(read_vocabulary(tmp_path, config).tokenizer(), config)
    assert [ours.decode(ours.encode(text)) for text in TEXTS] == TEXTS
    assert ours.encode("ab 7z") == tiny().encode("ab 7z")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"),
        ("vocab.json", "[]"),
        ("vocabulary.json", '["a", 1]'),
        ("vocabulary.json", "{"),
        ("vocabulary.txt", "a\nb"),
        ("vocabulary.txt", "\n".join([*words(300), "zzzz"])),
        ("multilingual.tiktoken", "IQ== 1"),
        ("multilingual.tiktoken", "?? 0"),
    ],
)
def test_a_spoilt_vocabulary_is_corrupt_by_name(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    (tmp_path / "merges.txt").write_text("a b")
    with pytest.raises(CheckpointCorrupt, match=file):
        read_vocabulary(tmp_path, config_of(51_865)).tokenizer()


def test_a_vocabulary_of_another_model_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="ends a text with another token"):
        WhisperTokenizer(
            read_vocabulary(real_folder(tmp_path, 51_864), config_of(51_864)).tokenizer(), config_of(51_865)
        )


def test_controls_written_out_in_a_text_stay_text() -> None:
    assert all(token < tiny().end for token in tiny().encode("say <|endoftext|> and <|startoftranscript|>"))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (" Hello, it's naïve — isn't it?", "en"),
        ("日本語のテキスト。", "ja"),
        (" 日本語 ok", "en"),
        (" ♪ la la 🎵🎶", "en"),
    ],
)
def test_words_are_those_of_mlx_whisper(tmp_path: Path, text: str, language: str) -> None:
    config = config_of(51_865)
    ours = WhisperTokenizer(read_vocabulary(real_folder(tmp_path, 51_865), config).tokenizer(), config)
    theirs = oracle(51_865, language=language)
    tokens = theirs.encode(text)
    assert ours.split_words(tokens, language) == list(zip(*theirs.split_to_word_tokens(tokens), strict=True))


def test_half_a_character_at_the_end_is_a_word_of_its_own() -> None:
    ours = tiny()
    halves = ours.encode(" é")
    assert ours.split_words(halves[:-1], "en")[-1][0].endswith("\N{REPLACEMENT CHARACTER}")
