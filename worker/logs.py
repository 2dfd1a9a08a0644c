"""Log lines of a worker: one JSON object a line on standard error.

The gateway reads them and logs them again under the model's name. Made from the standard library's records, because
importing structlog takes 40 ms of every cold start. A line holds no prompt and no answer. What a call's own task logs
tells its request and its trace.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TextIO

MAX_TRACE_CHARS = 16_000
LEVELS = ("debug", "info", "warning", "error")
# What a record always carries; everything else on it was given as `extra`.
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

NOTHING: Mapping[str, str] = MappingProxyType({})
_CONCERNED: ContextVar[Mapping[str, str]] = ContextVar("concerned", default=NOTHING)


def configure(level: str, stream: TextIO | None = None) -> None:
    """Write all records of this process, libraries' too, as JSON lines.

    Args:
        level: the least level that is written: debug, info, warning or error.
        stream: standard error unless given.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """Write from now on what is at least `level`: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())


def concern(facts: Mapping[str, str]) -> None:
    """Have all lines that the present task logs from now on tell these facts too."""
    _CONCERNED.set(facts)


class JsonFormatter(logging.Formatter):
    """Turns a record into one line of JSON: time, level, logger, event, its extra fields, an exception's trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
        line: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in STANDARD_FIELDS}
        line = {**_CONCERNED.get(), **line}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-MAX_TRACE_CHARS:]
        return json.dumps(line, default=str, ensure_ascii=False)
