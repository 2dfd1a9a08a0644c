"""What could be loaded and still not serve is refused before its weights are read."""

from pathlib import Path

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.checkpoint.errors import CheckpointRejected
from tests.support.tiny_checkpoints import llama_config, write_folder, write_llama_gguf
from worker.errors import ModelLoadFailed
from worker.loading import check_serves

VOCAB_SIZE = llama_config()["vocab_size"]


def folder(path: Path, **config: object) -> Path:
    return write_folder(path / "tiny", config=llama_config(**config))


def test_a_tokenizer_may_fill_the_vocabulary_and_not_exceed_it(tmp_path: Path) -> None:
    check_serves(open_checkpoint(folder(tmp_path / "full")), None)
    check_serves(open_checkpoint(write_llama_gguf(tmp_path / "full.gguf")), None)
    with pytest.raises(CheckpointRejected, match=f"tokenizer.json: has token {VOCAB_SIZE - 1}"):
        check_serves(open_checkpoint(folder(tmp_path / "small", vocab_size=VOCAB_SIZE - 1)), None)


@pytest.mark.parametrize("trained", [1, 2])
def test_a_context_has_room_for_a_prompt_and_an_answer(tmp_path: Path, trained: int) -> None:
    checkpoint = open_checkpoint(folder(tmp_path, max_position_embeddings=trained))
    if trained == 1:
        with pytest.raises(CheckpointRejected, match="max_position_embeddings"):
            check_serves(checkpoint, None)
    else:
        check_serves(checkpoint, 2)
        with pytest.raises(ModelLoadFailed, match="context_tokens is 1"):
            check_serves(checkpoint, 1)
