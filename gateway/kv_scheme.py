"""How a setting for keys and values is spelled, so that a wrong one is refused before a worker is touched."""

import re
from pathlib import Path

KV_SCHEME_FORMS = "none, 8, 4, config, turbo or turbo:k<bits>v<bits>"
TURBO_KEY_BITS = (2, 4, 5, 8)
TURBO_VALUE_BITS = (2, 3, 4, 5, 8)
TURBO_DEFAULT = "turbo:k8v3"

_TURBO = re.compile(r"turbo:k([0-9]{1,4})v([0-9]{1,4})")


def checked_kv_scheme(text: str, checkpoint: Path | None) -> str:
    """Return a scheme spelled out: turbo is turbo:k8v3.

    Args:
        text: as it was given.
        checkpoint: folder or GGUF file whose keys and values it is for; None where that is not known.

    Raises:
        ValueError: it is not offered, or not for this checkpoint; the text goes on from the name of the field.
    """
    if text == "turbo":
        return TURBO_DEFAULT
    if text.startswith("turbo:"):
        _check_turbo(text)
    elif text not in ("none", "8", "4", "config"):
        raise ValueError(f"must be {KV_SCHEME_FORMS}")
    if text == "config" and checkpoint is not None and checkpoint.suffix.lower() == ".gguf":
        raise ValueError(
            "cannot be config: that reads kv_config.json of a checkpoint's folder, and this is a GGUF file"
        )
    return text


def _check_turbo(text: str) -> None:
    found = _TURBO.fullmatch(text)
    if found is None:
        raise ValueError('for turbo must look like "turbo:k<bits>v<bits>"')
    for what, bits, offered in (("key", found[1], TURBO_KEY_BITS), ("value", found[2], TURBO_VALUE_BITS)):
        if int(bits) not in offered:
            raise ValueError(f"has turbo {what} bits {int(bits)}; they must be one of {', '.join(map(str, offered))}")
