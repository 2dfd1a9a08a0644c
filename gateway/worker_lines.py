"""What workers print, logged again under their model's name."""

import json
import logging
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from gateway.process import OnLine

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
OWN_KEYS = frozenset({"time", "level", "event", "model", "instance_id", "exc_info", "stack_info"})
MAX_FIELDS = 16


def line_logger(log: FilteringBoundLogger) -> OnLine:
    """Return what logs a worker's lines: JSON objects with their level and fields, others as they are.

    Args:
        log: bound to the model and the instance.
    """

    def take(stream: str, line: str) -> None:
        said = json_object(line)
        level, event = said.pop("level", None), said.pop("event", None)
        if not isinstance(event, str) or level not in LEVELS:
            log.info("worker said", stream=stream, line=line)
            return
        fields = {key: value for key, value in list(said.items())[:MAX_FIELDS] if key not in OWN_KEYS}
        log.log(LEVELS[level], event, **fields)

    return take


def json_object(line: str) -> dict[str, Any]:
    """Return the JSON object that a line is, or an empty one where it is something else."""
    if not line.startswith("{"):
        return {}
    try:
        said: object = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}
