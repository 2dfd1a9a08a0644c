"""How settings of several sources become one tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with what `above` says instead; sections and models merge."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if key == "models" and old:
            result[key] = _joined(old, value)
        elif isinstance(old, dict) and isinstance(value, Mapping):
            result[key] = merge(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value))
        else:
            result[key] = value
    return result


def _joined(old: Any, new: Any) -> Any:
    """Return the models of both, those of `new` in place of others of their names; what is no list is refused later."""
    for models in (old, new):
        if not isinstance(models, list | tuple):
            return models
    return list({_name(model): model for model in (*old, *new)}.values())


def _name(model: Any) -> object:
    """Return what a raw model is called; one without a name stays apart, to be refused later."""
    try:
        return model["name"]
    except (TypeError, KeyError):
        return id(model)
