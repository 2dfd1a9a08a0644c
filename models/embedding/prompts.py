"""What stands before a text for the model to know what its vector is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

# As Qwen3-Embedding and models trained like it have it: a task in words, then the text.
_INSTRUCTED = re.compile(r"(Instruct: )(?:.*?)(\nQuery: ?)", re.DOTALL)


class Task(Enum):
    """What a vector is for; each with the names that checkpoints give its prompt, in lower case."""

    QUERY = ("query", "retrieval_query", "search_query")
    DOCUMENT = ("document", "passage", "retrieval_document", "search_document")
    SIMILARITY = ("sts", "semantic_similarity", "similarity")
    CLASSIFICATION = ("classification",)
    CLUSTERING = ("clustering",)


@dataclass(frozen=True, slots=True)
class Prompts:
    """What a model has learned to see before texts.

    Attributes:
        by_task: only those that the checkpoint names; an empty one is a prompt too: nothing stands before such a text.
        default: where a request names no task.
        frame: what stands before and behind an instruction in words; None: the model takes none.
    """

    by_task: Mapping[Task, str] = field(default_factory=dict[Task, str])
    default: str = ""
    frame: tuple[str, str] | None = None

    @classmethod
    def of(cls, prompts: Mapping[str, str], default: str = "") -> Prompts:
        """Find the tasks, and the place of an instruction, in a checkpoint's prompts.

        Args:
            prompts: by the checkpoint's own names.
            default: the one where nobody names one.
        """
        named = {name.lower(): text for name, text in prompts.items()}
        by_task = {task: named[name] for task in Task for name in reversed(task.value) if name in named}
        found = _INSTRUCTED.fullmatch(by_task.get(Task.QUERY, ""))
        return cls(by_task, default, None if found is None else (found[1], found[2]))

    def instructed(self, instruction: str) -> str:
        """Return the prompt of an instruction; only for a model that takes one."""
        before, behind = self.frame or ("", "")
        return f"{before}{instruction}{behind}"
