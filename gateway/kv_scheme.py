"""How a setting for keys and values is spelled, so that a wrong one is refused before a worker is touched."""

import re
from pathlib import Path

KV_SCHEME_FORMS = "none, 8, 4, config, turbo or turbo:k<bits>v<bits>, then :g<size> (8 and 4) and :s<start>"
TURBO_KEY_BITS = (2, 4, 5, 8)
TURBO_VALUE_BITS = (2, 3, 4, 5, 8)
TURBO_DEFAULT = "turbo:k8v3"
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE = 64
START_UNIT_TOKENS = 32

_TURBO = re.compile(r"turbo:k([0-9]{1,4})v([0-9]{1,4})")
_SIZES = re.compile(r"(.*?)(?::g([0-9]{1,4}))?(?::s([0-9]{1,7}))?", re.DOTALL)


def checked_kv_scheme(text: str, checkpoint: Path | None) -> str:
    """Return a scheme spelled out: turbo is turbo:k8v3, and what is the default has no `:g` and no `:s`.

    Args:
        text: as it was given.
        checkpoint: folder or GGUF file whose keys and values it is for; None where that is not known.

    Raises:
        ValueError: it is not offered, or not for this checkpoint; the text goes on from the name of the field.
    """
    sizes = _SIZES.fullmatch(text)
    name, group, start = (text, None, None) if sizes is None else sizes.groups()
    _check_name(name, checkpoint)
    return (TURBO_DEFAULT if name == "turbo" else name) + _group_word(name, group) + _start_word(name, start)


def _check_name(name: str, checkpoint: Path | None) -> None:
    if name.startswith("turbo:"):
        _check_turbo(name)
    elif name not in ("none", "8", "4", "config", "turbo"):
        raise ValueError(f"must be {KV_SCHEME_FORMS}")
    if name == "config" and checkpoint is not None and checkpoint.suffix.lower() == ".gguf":
        raise ValueError(
            "cannot be config: that reads kv_config.json of a checkpoint's folder, and this is a GGUF file"
        )


def _group_word(name: str, digits: str | None) -> str:
    if digits is None:
        return ""
    if name not in ("8", "4"):
        raise ValueError("has a group size, which only 8 and 4 take")
    if int(digits) not in GROUP_SIZES:
        raise ValueError(f"has the group size {int(digits)}; it must be one of {', '.join(map(str, GROUP_SIZES))}")
    return "" if int(digits) == DEFAULT_GROUP_SIZE else f":g{int(digits)}"


def _start_word(name: str, digits: str | None) -> str:
    if digits is None:
        return ""
    if name == "none":
        raise ValueError("has a start, which none does not take")
    if int(digits) % START_UNIT_TOKENS:
        raise ValueError(f"starts at {int(digits)}; it must be a multiple of {START_UNIT_TOKENS} tokens")
    return f":s{int(digits)}" if int(digits) else ""


def _check_turbo(text: str) -> None:
    found = _TURBO.fullmatch(text)
    if found is None:
        raise ValueError('for turbo must look like "turbo:k<bits>v<bits>"')
    for what, bits, offered in (("key", found[1], TURBO_KEY_BITS), ("value", found[2], TURBO_VALUE_BITS)):
        if int(bits) not in offered:
            raise ValueError(f"has turbo {what} bits {int(bits)}; they must be one of {', '.join(map(str, offered))}")
