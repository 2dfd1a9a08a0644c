"""`python -P -m worker doctor CHECK`: one check of this machine, printed as one line of JSON.

Each check runs in a process of its own: one that crashes hides no other, and what is measured starts clean.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import native.blas
from models.checkpoint.errors import CheckpointError
from models.errors import ModelError
from native.errors import NativeError
from worker.finding import Finding

USAGE_EXIT = 2
# The module and function of each check; imported only for the one that runs, so that a missing MLX is a finding too.
CHECKS: Mapping[str, tuple[str, str]] = {
    "mlx": ("worker.doctor_machine", "check_mlx"),
    "blas": ("worker.doctor_machine", "check_blas"),
    "extension": ("worker.doctor_machine", "check_extension"),
    "mapping": ("worker.doctor_machine", "check_mapping"),
    "footprint": ("worker.doctor_machine", "check_footprint"),
    "parity": ("worker.doctor_models", "check_parity"),
    "speed": ("worker.doctor_models", "check_speed"),
}
WRITER = ("worker.doctor_models", "write_tiny")


def main(arguments: Sequence[str]) -> int:
    """Run the check that `arguments` names and print its finding.

    `checkpoint FOLDER` is no check: it writes a small random checkpoint there.

    Returns:
        The exit code of the process: 0 whatever the check found, 2 for a name that is none.
    """
    match list(arguments):
        case ["checkpoint", folder]:
            _function(*WRITER)(folder)
        case [name] if name in CHECKS:
            sys.stdout.write(json.dumps({"check": name, **asdict(_run(name))}) + "\n")
        case _:
            sys.stderr.write(f"doctor: give one of {', '.join(CHECKS)}, or checkpoint FOLDER\n")
            return USAGE_EXIT
    return 0


def _run(name: str) -> Finding:
    # Before MLX, as the worker does it; whether it can be loaded is the business of one check alone.
    with contextlib.suppress(NativeError):
        native.blas.load()
    try:
        return _function(*CHECKS[name])()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        missing = f"{package} is not installed, so this machine can relay but run no model"
        return Finding("warn", missing, "pip install 'pomona[worker]'")
    except (ImportError, OSError, RuntimeError, ValueError, TypeError) as error:
        return Finding("fail", f"{type(error).__name__}: {error}", "Please report this line.")
    except (NativeError, CheckpointError, ModelError) as error:
        return Finding("fail", f"{type(error).__name__}: {error}", "Please report this line.")


def _function(module: str, function: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), function)
