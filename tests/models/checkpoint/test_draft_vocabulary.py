"""Draft vocabularies: what a file may say, how often it is read, and which file holds."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.draft_vocabulary import DRAFT_VOCABULARY_FILE, DraftVocabularies, find_draft_vocabulary
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing, CheckpointRejected

VOCAB_SIZE = 100


def written(folder: Path, content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DRAFT_VOCABULARY_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(path: Path, vocab_size: int = VOCAB_SIZE) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        DraftVocabularies().read(path, vocab_size)
    assert str(path.parent) not in str(caught.value)
    return caught.value


def test_ids_are_distinct_and_ascend(tmp_path: Path) -> None:
    path = written(tmp_path, {"ids": [7, 0, 99, 7, 3, 3], "note": "from 1 GB of text"})
    assert DraftVocabularies().read(path, VOCAB_SIZE) == (0, 3, 7, 99)


def test_a_whole_number_may_be_written_with_a_point(tmp_path: Path) -> None:
    assert DraftVocabularies().read(written(tmp_path, '{"ids": [2.0, 2, 1e1]}'), VOCAB_SIZE) == (2, 10)


@pytest.mark.parametrize("content", [{}, {"ids": None}, {"ids": []}, {"ids": {"0": 1}}, {"ids": "0,1"}, {"ids": 5}])
def test_a_file_without_ids_is_corrupt(tmp_path: Path, content: Any) -> None:
    error = refusal(written(tmp_path, content))
    assert (type(error), error.reason, error.file, error.key) == (
        CheckpointCorrupt,
        "CHECKPOINT_CORRUPT",
        "draft_vocab.json",
        "ids",
    )
    assert error.problem == 'is no list with entries, as in {"ids": [0, 1]}'


@pytest.mark.parametrize("content", ["[]", "[1, 2]", "nonsense", "", '"ids"'])
def test_a_file_that_is_no_object_is_corrupt(tmp_path: Path, content: str) -> None:
    error = refusal(written(tmp_path, content))
    assert (type(error), error.file, error.key) == (CheckpointCorrupt, "draft_vocab.json", "")


@pytest.mark.parametrize("entry", [-1, 1.5, "3", None, True, [1], {"id": 1}, 1e400])
def test_an_id_that_is_no_whole_number_from_0_is_corrupt(tmp_path: Path, entry: Any) -> None:
    error = refusal(written(tmp_path, {"ids": [5, entry, 9]}))
    assert (type(error), error.file, error.key) == (CheckpointCorrupt, "draft_vocab.json", "ids")
    assert error.problem == "holds what is no whole number from 0"


def test_an_id_outside_the_targets_vocabulary_is_rejected(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, {"ids": [1, 100, 2]}))
    assert (type(error), error.reason, error.file, error.key) == (
        CheckpointRejected,
        "CHECKPOINT_REJECTED",
        "draft_vocab.json",
        "ids",
    )
    assert error.problem == "names token 100; the target's tokens are below 100"


def test_the_vocabulary_is_checked_at_every_call(tmp_path: Path) -> None:
    path, known = written(tmp_path, {"ids": [1, 50]}), DraftVocabularies()
    assert known.read(path, 51) == known.read(path, VOCAB_SIZE) == (1, 50)
    with pytest.raises(CheckpointRejected, match="token 50; the target's tokens are below 50"):
        known.read(path, 50)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path, known = written(tmp_path, {"ids": [1, 2]}), DraftVocabularies()
    first = known.read(path, VOCAB_SIZE)
    assert known.read(path, VOCAB_SIZE) is first
    written(tmp_path, {"ids": [1, 2, 3]})
    assert known.read(path, VOCAB_SIZE) == (1, 2, 3)


def test_a_file_of_the_same_length_is_read_again_too(tmp_path: Path) -> None:
    path, known = written(tmp_path, {"ids": [1, 2]}), DraftVocabularies()
    known.read(path, VOCAB_SIZE)
    written(tmp_path, {"ids": [1, 3]})
    os.utime(path, ns=(1, 1))
    assert known.read(path, VOCAB_SIZE) == (1, 3)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    error = refusal(tmp_path / "draft_vocab.json")
    assert (type(error), error.reason, error.file) == (CheckpointMissing, "CHECKPOINT_REJECTED", "draft_vocab.json")


def test_what_is_no_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "draft_vocab.json")
    assert type(refusal(tmp_path / "draft_vocab.json")) is CheckpointRejected


def test_a_file_that_is_named_goes_before_all_else(tmp_path: Path) -> None:
    written(tmp_path / "mtp", {"ids": [1]})
    chosen = tmp_path / "other.json"
    assert find_draft_vocabulary(tmp_path, chosen=chosen, is_off=True) == chosen


def test_off_goes_before_the_companion(tmp_path: Path) -> None:
    companion = written(tmp_path / "mtp", {"ids": [1]})
    assert find_draft_vocabulary(tmp_path, is_off=True) is None
    assert find_draft_vocabulary(tmp_path) == companion


def test_a_checkpoint_without_a_companion_has_none(tmp_path: Path) -> None:
    assert find_draft_vocabulary(tmp_path) is None


@pytest.mark.parametrize("linked", ["mtp", "mtp/draft_vocab.json"])
def test_a_companion_that_lies_elsewhere_is_rejected(tmp_path: Path, linked: str) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    written(elsewhere, {"ids": [1]})
    (folder / linked).parent.mkdir(parents=True)
    (folder / linked).symlink_to(elsewhere if linked == "mtp" else elsewhere / DRAFT_VOCABULARY_FILE)
    with pytest.raises(CheckpointRejected, match="leads outside"):
        find_draft_vocabulary(folder)
