"""Where a checkpoint keeps its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.files import inside, read_bytes
from models.checkpoint.tokenizer import TOKENIZER_CONFIG_FILE, read_tokenizer_config

TEMPLATE_FILE = "chat_template.jinja"
MAX_TEMPLATE_BYTES = 1 << 20
_GGUF_KEY = "tokenizer.chat_template"


def read_template_source(folder: Path) -> str | None:
    """Return the template of a folder: chat_template.jinja, else `chat_template` of tokenizer_config.json.

    The latter is one template, or a list of named ones of which `default` is taken. None where there is none.

    Raises:
        CheckpointCorrupt: it is not text.
        CheckpointRejected: it is over 1 MiB, or a list without `default`.
    """
    if (folder / TEMPLATE_FILE).exists():
        content = read_bytes(inside(folder, TEMPLATE_FILE, named_by=TEMPLATE_FILE), MAX_TEMPLATE_BYTES)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointCorrupt("is not UTF-8", file=TEMPLATE_FILE) from error
    value = read_tokenizer_config(folder).get("chat_template")
    if isinstance(value, list):
        value = _default_of(cast("list[Any]", value))
    return _checked(value, TOKENIZER_CONFIG_FILE, "chat_template")


def gguf_template_source(metadata: Mapping[str, object], file: str) -> str | None:
    """Return the template in a GGUF file's metadata; None where there is none.

    Raises:
        CheckpointCorrupt: it is not text.
        CheckpointRejected: it is over 1 MiB.
    """
    return _checked(metadata.get(_GGUF_KEY), file, _GGUF_KEY)


def _default_of(templates: list[Any]) -> object:
    named = [cast("dict[str, Any]", entry) for entry in templates if isinstance(entry, dict)]
    for entry in named:
        if entry.get("name") == "default":
            return entry.get("template")
    raise CheckpointRejected("has no template named default", file=TOKENIZER_CONFIG_FILE, key="chat_template")


def _checked(value: object, file: str, key: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise CheckpointCorrupt("is no text", file=file, key=key)
    if len(value) > MAX_TEMPLATE_BYTES:
        raise CheckpointRejected(f"is over {MAX_TEMPLATE_BYTES} characters", file=file, key=key)
    return value
