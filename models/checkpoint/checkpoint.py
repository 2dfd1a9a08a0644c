"""A checkpoint as the rest of the system sees it, whichever files it comes from; headers only, no MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from models.checkpoint.config import eos_ids, read_config, read_generation_config
from models.checkpoint.errors import CheckpointCorrupt, CheckpointMissing, CheckpointRejected
from models.checkpoint.files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, inside, missing_words, read_bytes
from models.checkpoint.folder import INDEX_FILE, read_folder_tensors, read_start
from models.checkpoint.gguf import MAGIC, MetadataValue, read_gguf_header
from models.checkpoint.gguf_llama import gguf_config, gguf_quantization, gguf_tensors
from models.checkpoint.gguf_tokenizer import gguf_tokenizer
from models.checkpoint.quantization import LayerQuantization, Quantization
from models.checkpoint.revision import revision_of
from models.checkpoint.template_source import gguf_template_source, read_template_source
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.text_config import CONFIG_FILE, TextConfig, read_text_config
from models.checkpoint.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer, read_tokenizer


@dataclass(frozen=True, slots=True)
class Limits:
    """What the checkpoint itself bounds: the longest sequence that it was trained for, None where it says nothing."""

    max_position_embeddings: int | None


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a checkpoint says before its weights are read.

    Attributes:
        name: base name of the folder or file.
        format: `safetensors`, `gguf` or, of Whisper alone, `ctranslate2`.
        architecture: model_type, `llama`.
        config: keys of Hugging Face's config.json, checked, with defaults; `tie_word_embeddings`, `rope_theta` and
            `rope_scaling` (None, or `rope_type` linear or llama3 with its numbers) are there for those that state them.
        generation_config: generation_config.json as it stands; empty for GGUF.
        quantization: None where no layer is quantized.
        tensors: by canonical name.
        chat_template: source of the template, None where there is none.
        revision: 16 hex digits that change with the content; how they are made stands at `revision_of`.
        limits: what the checkpoint bounds.
    """

    name: str
    format: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    quantization: Quantization | None
    tensors: Mapping[str, TensorInfo]
    chat_template: str | None
    revision: str
    limits: Limits
    read_tokenizer: Callable[[], Tokenizer]

    @property
    def architecture(self) -> str:
        """The model_type."""
        return str(self.config["model_type"])

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; it is built at the first call and the same one is returned after.

        Raises:
            CheckpointError: naming the file.
        """
        return self._tokenizer

    @property
    def weights_file(self) -> str:
        """Base name of the file that speaks for all weights: the only one, or the index; a pack beside it does not."""
        infos = self.tensors.values()
        files = {info.file.name for info in infos if not info.is_raw} or {info.file.name for info in infos}
        return files.pop() if len(files) == 1 else INDEX_FILE

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a text: of config, generation config and tokenizer together."""
        configs = eos_ids(self.config, CONFIG_FILE) | eos_ids(self.generation_config, CONFIG_FILE)
        return configs | self._tokenizer.eos_token_ids

    def layer_quantization(self, module: str) -> LayerQuantization | None:
        """Return how the weight of a module is packed; None where it is stored plain.

        A module is packed where it has scales; the config says how.

        Args:
            module: canonical name, `model.layers.0.self_attn.q_proj`.

        Raises:
            CheckpointCorrupt: scales without a config for them, an override without scales, or biases that the mode
                does not have or lacks.
            CheckpointRejected: it is coded along a trellis.
        """
        scales = self.tensors.get(f"{module}.scales")
        stated = self.quantization
        layer = stated.for_layer(module) if stated else None
        if layer is not None and layer.trellis is not None:
            raise CheckpointRejected("is coded along a trellis, which is not run", file=self._file(module), key=module)
        if scales is None:
            if stated and stated.per_layer.get(module) is not None:
                raise CheckpointCorrupt("is quantized but has no scales", file=self._file(module), key=module)
            return None
        if layer is None:
            raise CheckpointCorrupt("has scales but is not quantized", file=scales.file.name, key=module)
        if layer.has_biases != (f"{module}.biases" in self.tensors):
            words = "lacks the biases" if layer.has_biases else "has biases"
            raise CheckpointCorrupt(f"{words} of {layer}", file=scales.file.name, key=module)
        return layer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self.read_tokenizer()

    def _file(self, module: str) -> str:
        weight = self.tensors.get(f"{module}.weight")
        return weight.file.name if weight else CONFIG_FILE


@dataclass(frozen=True)
class TextCheckpoint(Checkpoint):
    """A checkpoint of a model that writes text.

    Attributes:
        text: its config, typed.
    """

    text: TextConfig

    @classmethod
    def of(cls, checkpoint: Checkpoint, text: TextConfig) -> TextCheckpoint:
        """Add a typed config to a checkpoint whose tokenizer was not built yet."""
        return cls(**{each.name: getattr(checkpoint, each.name) for each in fields(checkpoint)}, text=text)

    @property
    def architecture(self) -> str:
        """The text model's model_type."""
        return self.text.model_type


def open_checkpoint(path: Path) -> TextCheckpoint:
    """Open a folder in the layout of Hugging Face, or a GGUF file.

    Reads headers, configs and the tokenizer's bytes; no weights beyond the samples that name the revision.

    Raises:
        CheckpointMissing: the folder, the file or a part of it is not there.
        CheckpointRejected: an architecture, scheme, format or value that this build does not run.
        CheckpointCorrupt: a file contradicts itself, its neighbours or its length.
    """
    try:
        path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointMissing(missing_words(error), file=path.name) from error
    try:
        return _open(path)
    except OSError as error:
        raise CheckpointMissing("cannot be read", file=path.name) from error


def _open(path: Path) -> TextCheckpoint:
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() == ".gguf" or read_start(path, len(MAGIC)) == MAGIC:
        return _open_gguf(path)
    raise CheckpointRejected("is neither a checkpoint's folder nor a GGUF file", file=path.name)


def _open_folder(folder: Path) -> TextCheckpoint:
    config, config_bytes = read_config(folder)
    longest = config.text.max_position_embeddings
    files = read_folder(folder, config.keys, config_bytes, config.quantization, longest)
    is_tied = _is_tied(config.keys, files.tensors)
    keys = {**config.keys, "tie_word_embeddings": is_tied}
    return TextCheckpoint.of(replace(files, config=keys), replace(config.text, tie_word_embeddings=is_tied))


def read_folder(
    folder: Path,
    config: Mapping[str, Any],
    config_bytes: bytes,
    quantization: Quantization | None,
    longest: int | None,
) -> Checkpoint:
    """Read the files of a folder whose config.json has been read.

    Args:
        folder: in the layout of Hugging Face.
        config: keys of its config.json, as `Checkpoint` has them.
        config_bytes: of the file.
        quantization: how the config says that layers are packed.
        longest: sequence that the model was trained for; None: the config does not say.

    Raises:
        CheckpointError: as `open_checkpoint`.
    """
    generation_config, generation_bytes = read_generation_config(folder)
    tensors, headers = read_folder_tensors(folder)
    template = read_template_source(folder)
    tokenizer_bytes = read_bytes(inside(folder, TOKENIZER_FILE, named_by=TOKENIZER_FILE), MAX_TOKENIZER_BYTES)
    parts = [config_bytes, generation_bytes, tokenizer_bytes, _optional(folder, TOKENIZER_CONFIG_FILE)]
    parts += [(template or "").encode("utf-8", "surrogatepass"), *(header.digest for header in headers)]
    return Checkpoint(
        name=folder.name,
        format="safetensors",
        config=config,
        generation_config=generation_config,
        quantization=quantization,
        tensors=tensors,
        chat_template=template,
        revision=revision_of(parts, sorted({tensor.file for tensor in tensors.values()})),
        limits=Limits(longest),
        read_tokenizer=lambda: read_tokenizer(folder),
    )


def _open_gguf(path: Path) -> TextCheckpoint:
    header = read_gguf_header(path)
    config = gguf_config(header, path)
    eos_ids(config, path.name)
    return TextCheckpoint(
        name=path.name,
        format="gguf",
        config=config,
        text=read_text_config(config, path.name),
        generation_config={},
        quantization=gguf_quantization(header, path.name),
        tensors=gguf_tensors(header, config, path),
        chat_template=gguf_template_source(header.metadata, path.name),
        revision=revision_of([header.digest], [path]),
        limits=Limits(config.get("max_position_embeddings")),
        read_tokenizer=_GgufTokenizerReader(header.metadata, path.name),
    )


class _GgufTokenizerReader:
    """Builds the tokenizer once, and then lets go of the texts that it was made of: some megabytes."""

    def __init__(self, metadata: Mapping[str, MetadataValue], file: str) -> None:
        self._metadata: Mapping[str, MetadataValue] = metadata
        self._file = file

    def __call__(self) -> Tokenizer:
        tokenizer = gguf_tokenizer(self._metadata, self._file)
        self._metadata = {}
        return tokenizer


def _is_tied(keys: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> bool:
    """Tell whether the head is the embedding; where the config does not say, the tensors do."""
    tie = keys.get("tie_word_embeddings")
    return "lm_head.weight" not in tensors if tie is None else tie


def _optional(folder: Path, name: str) -> bytes:
    return read_bytes(inside(folder, name, named_by=name), MAX_JSON_BYTES) if (folder / name).exists() else b""
