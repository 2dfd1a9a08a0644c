"""The sizes of a Whisper model, and what its checkpoint says about finding words in time.

Keys are those of an MLX checkpoint's config.json (`n_mels`, `n_audio_ctx`, ...), which come from OpenAI's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from models.checkpoint.errors import CheckpointRejected

CONFIG_FILE = "config.json"
ARCHITECTURE = "whisper"
MEL_BANDS = (80, 128)
FRAMES_PER_POSITION = 2
# Ids before the languages: 50,257 of text (English-only: 50,256), end and start. After them: six more controls and
# 1,501 times. Source: OpenAI's tokenizer, as the seeds' B13 counts it: languages = n_vocab - 51765 - multilingual.
_MULTILINGUAL_VOCAB = 51_865
_VOCAB_WITHOUT_LANGUAGES = 51_765
MAX_LANGUAGES = 100
_MAX_SIZE = 1 << 17

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes of a model.

    Attributes:
        n_mels: mel bands of a frame: 80 or 128.
        n_audio_ctx: positions of the encoder, two frames each.
        n_audio_state: width of the encoder.
        n_audio_head: its heads.
        n_audio_layer: its blocks.
        n_vocab: token ids.
        n_text_ctx: positions of the decoder.
        n_text_state: width of the decoder.
        n_text_head: its heads.
        n_text_layer: its blocks.
        alignment_heads: (layer, head) of the cross-attention that follows the speech; None where the checkpoint names
            none.
    """

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int
    alignment_heads: Heads | None = None

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """Read the sizes of a checkpoint's config.

        Raises:
            CheckpointRejected: naming the key that is missing or no size of a model.
        """
        heads = read_heads(config.get("alignment_heads"), CONFIG_FILE)
        sizes = {key: _size(config, key) for key in SIZE_KEYS}
        found = cls(**sizes, alignment_heads=heads)
        found._check()
        return found

    @property
    def is_multilingual(self) -> bool:
        """Whether the model knows languages other than English."""
        return self.n_vocab >= _MULTILINGUAL_VOCAB

    @property
    def num_languages(self) -> int:
        """How many language tokens the vocabulary has; an English-only model never uses them."""
        return self.n_vocab - _VOCAB_WITHOUT_LANGUAGES - int(self.is_multilingual)

    @property
    def num_frames(self) -> int:
        """Frames of a window: 3,000 for 30 seconds."""
        return self.n_audio_ctx * FRAMES_PER_POSITION

    @property
    def timing_heads(self) -> Heads:
        """The heads that find words in time: the checkpoint's, or all of the last half of the layers."""
        if self.alignment_heads is not None:
            return self.alignment_heads
        layers = range(self.n_text_layer // 2, self.n_text_layer)
        return tuple((layer, head) for layer in layers for head in range(self.n_text_head))

    def _check(self) -> None:
        problems = {
            "n_mels": self.n_mels not in MEL_BANDS,
            "n_vocab": not 1 <= self.num_languages <= MAX_LANGUAGES,
            "n_audio_head": self.n_audio_state % self.n_audio_head != 0,
            "n_text_head": self.n_text_state % self.n_text_head != 0,
            "n_audio_state": self.n_audio_state < 4 or self.n_audio_state % 2 != 0,
            "n_text_state": self.n_text_state != self.n_audio_state,
            "alignment_heads": any(
                layer >= self.n_text_layer or head >= self.n_text_head for layer, head in self.alignment_heads or ()
            ),
        }
        for key, is_wrong in problems.items():
            if is_wrong:
                raise CheckpointRejected("fits no Whisper model", file=CONFIG_FILE, key=key)


SIZE_KEYS = tuple(field for field in Config.__dataclass_fields__ if field != "alignment_heads")


def read_heads(value: object, file: str) -> Heads | None:
    """Return (layer, head) pairs of a JSON list of pairs; None and an empty list: there are none.

    Raises:
        CheckpointRejected: it is anything else.
    """
    pairs = cast("list[object]", value) if isinstance(value, list) else []
    heads: list[tuple[int, int]] = []
    for pair in pairs:
        numbers = cast("list[object]", pair) if isinstance(pair, list) else []
        whole = [number for number in numbers if type(number) is int and number >= 0]
        if len(whole) != 2 or len(numbers) != 2:
            raise CheckpointRejected("is no list of layer and head", file=file, key="alignment_heads")
        heads.append((whole[0], whole[1]))
    if value is not None and not isinstance(value, list):
        raise CheckpointRejected("is no list", file=file, key="alignment_heads")
    return tuple(heads) or None


def _size(config: Mapping[str, Any], key: str) -> int:
    value: object = config.get(key)
    if value is None:
        raise CheckpointRejected("is missing", file=CONFIG_FILE, key=key)
    if type(value) is not int or not 1 <= value <= _MAX_SIZE:
        raise CheckpointRejected(f"is {value!r}, no size of a model", file=CONFIG_FILE, key=key)
    return value
