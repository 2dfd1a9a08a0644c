"""Reading one checked value of a config: each reader returns what it promises or names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from models.checkpoint.errors import CheckpointRejected

MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 24
MAX_TOKENS = 1 << 31


def read_int(
    config: Mapping[str, Any],
    key: str,
    file: str,
    *,
    default: int | None = None,
    minimum: int = 1,
    maximum: int = MAX_WIDTH,
) -> int:
    """Return a whole number from `minimum` to `maximum`; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is missing without a default, or is anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointRejected("is missing", file=file, key=key)
    if type(value) is not int or not minimum <= value <= maximum:
        raise CheckpointRejected(f"is no whole number from {minimum} to {maximum}", file=file, key=key)
    return value


def read_optional_int(config: Mapping[str, Any], key: str, file: str, *, maximum: int = MAX_WIDTH) -> int | None:
    """Return a whole number from 1 to `maximum`, None where the key is absent or null; raises as `read_int`."""
    return None if config.get(key) is None else read_int(config, key, file, maximum=maximum)


def read_float(config: Mapping[str, Any], key: str, file: str, *, default: float | None = None) -> float:
    """Return a finite number over 0; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is missing without a default, or is anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointRejected("is missing", file=file, key=key)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise CheckpointRejected("is no finite number over 0", file=file, key=key)
    return _plain_float(value, file, key)


def read_optional_float(config: Mapping[str, Any], key: str, file: str) -> float | None:
    """Return a finite number over 0, None where the key is absent or null; raises as `read_float`."""
    return None if config.get(key) is None else read_float(config, key, file)


def read_bool(config: Mapping[str, Any], key: str, file: str, *, default: bool = False) -> bool:
    """Return true or false; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is anything else.
    """
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointRejected("is neither true nor false", file=file, key=key)
    return default if value is None else value


def read_word(config: Mapping[str, Any], key: str, file: str, *, default: str | None = None) -> str:
    """Return a text; `default` where the key is absent or null.

    Raises:
        CheckpointRejected: it is missing without a default, or is anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointRejected("is missing", file=file, key=key)
    if not isinstance(value, str):
        raise CheckpointRejected("is no text", file=file, key=key)
    return value


def read_object(config: Mapping[str, Any], key: str, file: str) -> Mapping[str, Any] | None:
    """Return an object, None where the key is absent or null; raises `CheckpointRejected` for anything else."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise CheckpointRejected("is no object", file=file, key=key)
    return cast("Mapping[str, Any] | None", value)


def read_list(config: Mapping[str, Any], key: str, file: str) -> list[object] | None:
    """Return a list, None where the key is absent or null; raises `CheckpointRejected` for anything else."""
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        raise CheckpointRejected("is no list", file=file, key=key)
    return cast("list[object] | None", value)


def read_floats(config: Mapping[str, Any], key: str, file: str) -> tuple[float, ...]:
    """Return a list of finite numbers over 0, empty where the key is absent or null.

    Raises:
        CheckpointRejected: it is anything else.
    """
    values = read_list(config, key, file) or []
    return tuple(read_float({key: value}, key, file) for value in values)


def read_token_ids(config: Mapping[str, Any], key: str, file: str) -> tuple[int, ...]:
    """Return token ids in the order of the file: the key holds one id, a list of them, null or nothing.

    Raises:
        CheckpointRejected: it holds anything else.
    """
    value: object = config.get(key)
    if value is None:
        return ()
    ids = cast("list[object]", value) if isinstance(value, list) else [value]
    found = tuple(number for number in ids if type(number) is int and 0 <= number < MAX_TOKENS)
    if len(found) != len(ids):
        raise CheckpointRejected("is neither a token id nor a list of them", file=file, key=key)
    return tuple(dict.fromkeys(found))


def _plain_float(value: float, file: str, key: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise CheckpointRejected("is no finite number over 0", file=file, key=key) from error
