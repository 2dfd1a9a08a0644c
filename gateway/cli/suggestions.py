"""What a person may have meant who mistyped a name."""

import difflib
from collections.abc import Sequence

LIKENESS = 0.5


def closest_first(typed: str, names: Sequence[str]) -> list[str]:
    """Return `names`, the likeliest to be meant by `typed` first, the others as they were."""
    likeness = {name: _likeness(typed, name) for name in names}
    return sorted(names, key=lambda name: -likeness[name] if likeness[name] >= LIKENESS else 0.0)


def suggestion(typed: str, names: Sequence[str]) -> str:
    """Ask whether the name closest to `typed` was meant; empty where none is close."""
    closest = closest_first(typed, names)[:1]
    return f". Did you mean {closest[0]}?" if closest and _likeness(typed, closest[0]) >= LIKENESS else ""


def _likeness(typed: str, name: str) -> float:
    """Return 1 for the same name in other letters' cases, or for its beginning or end, down to 0."""
    one, other = typed.casefold(), name.casefold()
    if one and (other.startswith(one) or other.endswith(one)):
        return 1.0
    return difflib.SequenceMatcher(None, one, other).ratio()
