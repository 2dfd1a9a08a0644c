"""How a worker ended, in words that a client may read."""

import re
import signal

from gateway.model_status import Exit, ExitCause
from gateway.worker_lines import json_object

MAX_CHARS = 300
FOLDERS = re.compile(r"[^\s'\"(]*/")


def words_of(ended: Exit) -> str:
    """Return the exit code or signal and the last line that tells a failure, without any folder's path.

    What a worker logs at info in the course of its life explains no end.
    """
    how = "stalled" if ended.cause is ExitCause.STALLED else _code_or_signal(ended)
    said = [_sentence(line).strip() for line in ended.last_words if line.strip() and not _is_routine(line)]
    return f"{how}: {without_folders(said[-1])}"[:MAX_CHARS] if said else how


def signal_name(number: int | None) -> str:
    """Return the name of a signal, its number where it has none, and nothing for None."""
    if number is None:
        return ""
    return signal.Signals(number).name if number in signal.valid_signals() else str(number)


def without_folders(text: str) -> str:
    """Return `text` with every path cut down to its last part, and so with anything else that has a slash."""
    return FOLDERS.sub("", text)


def _is_routine(line: str) -> bool:
    return json_object(line).get("level") in {"debug", "info"}


def _sentence(line: str) -> str:
    """Return what a line says in words: of a JSON object its trace's last line, its message or its event."""
    said = json_object(line)
    trace = str(said.get("trace", "")).strip().rpartition("\n")[2]
    return trace or str(said.get("message") or said.get("event") or line)


def _code_or_signal(ended: Exit) -> str:
    if ended.signal is not None:
        return signal_name(ended.signal)
    return "not started" if ended.code is None else f"exit code {ended.code}"
