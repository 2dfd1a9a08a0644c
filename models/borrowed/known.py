"""Which architectures mlx-lm knows, told from its files without running any of them.

What asks may have no MLX, and importing mlx-lm takes seconds. Each of its modules of models stands for the architecture
of its name; a table says which others are another's under a second name.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

EXTRA = "pomona[mlx-lm]"
_PACKAGE = "mlx_lm"
_TABLE = re.compile(r"^MODEL_REMAPPING = (\{.*?^\})$", re.MULTILINE | re.DOTALL)
# What may be a module's name: nothing that leads into another folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
# What every module of a model defines, and none of what they share.
_CONFIG_CLASS = re.compile(r"\bModelArgs\b")


def is_installed() -> bool:
    """Tell whether mlx-lm is there."""
    return _folder() is not None


def knows(model_type: str) -> bool:
    """Tell whether mlx-lm has a model for a config of this `model_type`."""
    folder = _folder()
    if folder is None:
        return False
    name = _second_names(folder / "utils.py").get(model_type, model_type)
    if _NAME.fullmatch(name) is None:
        return False
    try:
        source = (folder / "models" / f"{name}.py").read_text("utf-8")
    except OSError:
        return False
    return _CONFIG_CLASS.search(source) is not None


def _folder() -> Path | None:
    """Return where mlx-lm is installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _second_names(file: Path) -> Mapping[str, str]:
    """Read the table of second names, a literal; where it is not found as it was, there are none."""
    try:
        table = _TABLE.search(file.read_text("utf-8"))
        return {} if table is None else cast("Mapping[str, str]", ast.literal_eval(table[1]))
    except (OSError, SyntaxError, ValueError):
        return {}
