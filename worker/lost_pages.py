"""Last words of a worker whose mapped weights cannot be read any more; the gateway takes them for a failed load.

So it says why the model is not served, and does not start a worker again that would end in the same way. What was being
answered ends as with any worker that ends.
"""

import json

import native
from models.checkpoint.errors import CheckpointCorrupt
from models.experts.pack import PACK_FILE

# Of a load that failed, see `worker.server`.
EXIT_LOAD_FAILED = 3
PROBLEM = "cannot be read where it is mapped: it became shorter, or its disk failed"


def tell_lost_pages() -> None:
    """Have this process end with its reason when a mapped page is lost; nothing without the native extension."""
    if native.is_built():
        native.end_on_lost_pages(last_words(), EXIT_LOAD_FAILED)


def last_words() -> str:
    """Return the line, as a load that fails writes it."""
    error = CheckpointCorrupt(PROBLEM, file=PACK_FILE)
    return json.dumps(
        {
            "level": "error",
            "event": "weights lost",
            "reason": error.reason,
            "message": str(error),
            "metadata": error.metadata,
        }
    )
