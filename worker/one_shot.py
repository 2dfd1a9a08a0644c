"""One-shots: commands that look at a checkpoint, print what they found as JSON, and end; no MLX."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message

from models.checkpoint.errors import CheckpointError
from worker.errors import ModelLoadFailed, UnsupportedOption
from worker.settings import SettingsError

EXIT_USAGE = 2
EXIT_REJECTED = 3


def print_answer(verb: str, argv: Sequence[str], answer: Callable[[Path, str], Message]) -> int:
    """Print what is found of the checkpoint at `argv[0]`, with the settings at `argv[1]`; return the exit code.

    What cannot be used is told as `{"reason", "message", "metadata"}` with exit code 3.

    Args:
        verb: the command's name.
        argv: what comes after it.
        answer: finds it, given the path and the settings, a JSON object; it raises as headers are read.
    """
    if len(argv) not in {1, 2}:
        sys.stderr.write(f"usage: python -P -m worker {verb} PATH [SETTINGS]\n")
        return EXIT_USAGE
    try:
        message = answer(Path(argv[0]), argv[1] if argv[1:] else "{}")
    except SettingsError as error:
        sys.stderr.write(f"worker: {error}\n")
        return EXIT_USAGE
    except CheckpointError as error:
        return refuse(error.reason, str(error), error.metadata)
    except ModelLoadFailed as error:
        return refuse("MODEL_LOAD_FAILED", str(error), error.metadata)
    except UnsupportedOption as error:
        return refuse("UNSUPPORTED_OPTION", error.description, error.metadata)
    sys.stdout.write(json_format.MessageToJson(message, indent=None) + "\n")
    return 0


def refuse(reason: str, message: str, metadata: Mapping[str, str]) -> int:
    """Say why nothing can be told, and return the exit code."""
    sys.stdout.write(json.dumps({"reason": reason, "message": message, "metadata": dict(metadata)}) + "\n")
    return EXIT_REJECTED
