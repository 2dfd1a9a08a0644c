"""Names of adapters, and of the halves of an adapter's matrices.

mlx-lm writes `<module>.lora_a`, PEFT `base_model.model.<module>.lora_A.weight`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from models.checkpoint.names import canonical_name

MAX_NAME_CHARS = 200
# As models are named in the catalogue.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", re.ASCII)
_HALF = re.compile(r"(.+)\.lora_([abAB])(\.weight)?", re.ASCII)
_PEFT_PREFIX = "base_model.model."

Side = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class Half:
    """What a tensor is by its name.

    Attributes:
        module: canonical name of the layer that it belongs to.
        side: `a` reads what the layer reads, `b` adds to what it gives.
        is_peft: whether it is spelled as PEFT does.
    """

    module: str
    side: Side
    is_peft: bool


def is_adapter_name(text: str) -> bool:
    """Say whether `text` may name an adapter: `name` or `organisation/name`, at most 200 characters."""
    return len(text) <= MAX_NAME_CHARS and _NAME.fullmatch(text) is not None


def read_half(name: str) -> Half | None:
    """Read the name of a tensor; None where it is none of a half of a matrix."""
    found = _HALF.fullmatch(name)
    if found is None:
        return None
    module, letter, suffix = found.groups()
    side: Side = "a" if letter in "aA" else "b"
    plain = canonical_name(module.removeprefix(_PEFT_PREFIX))
    return Half(plain, side, is_peft=letter.isupper() or suffix is not None)


def is_of(module: str, names: tuple[str, ...]) -> bool:
    """Tell whether a module is one of `names`, or ends with one of them behind a dot."""
    return any(module == name or module.endswith(f".{name}") for name in names)
