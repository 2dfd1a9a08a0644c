"""The marks that a model writes around its reasoning, and where a prompt leaves it.

Which marks a checkpoint has is told from its chat template: one that never names the closing mark was not trained to
reason apart. The pairs are those of Gemma 4, Seed-OSS, Magistral, Kimi-VL, Command A Reasoning and EXAONE Deep, and the
last that of Qwen 3, DeepSeek R1, GLM, MiniCPM and most others: each from the template that such a checkpoint brings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_MARK_CHARS = 64
NO_MARKS = "none"


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What opens reasoning and what closes it, as text; neither is ever part of an output."""

    open: str
    close: str


class Start(Enum):
    """Where the end of a prompt leaves the model."""

    BEFORE = "before"  # it may open its reasoning
    INSIDE = "inside"  # the prompt has opened it
    BEHIND = "behind"  # the prompt has closed it, or the answer has begun


class MarksError(ValueError):
    """Raised when a setting names no usable marks."""


_KNOWN = (
    ReasoningMarks("<|channel>thought", "<channel|>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("◁think▷", "◁/think▷"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<thought>", "</thought>"),
    ReasoningMarks("<think>", "</think>"),
)


def marks_in(template: str) -> ReasoningMarks | None:
    """Return the marks that a chat template knows.

    Args:
        template: Jinja source.
    """
    return next((marks for marks in _KNOWN if marks.close in template), None)


def marks_of(setting: str | Sequence[str] | None, template: str | None) -> ReasoningMarks | None:
    """Return a model's marks: those of the settings, else those of its chat template.

    Args:
        setting: the opening and the closing mark; `none`: it has none, whatever its template says; None: not set.
        template: Jinja source; None: the model has no template.

    Raises:
        MarksError: the setting is neither.
    """
    if setting is None:
        return None if template is None else marks_in(template)
    if setting == NO_MARKS:
        return None
    if isinstance(setting, str) or len(setting) != len(("open", "close")):
        raise MarksError(f"give an opening and a closing mark, or {NO_MARKS}")
    return _checked(*setting)


def start_of(prompt: str, marks: ReasoningMarks | None) -> Start:
    """Return where a prompt that is no chat leaves the model: only marks at its very end count.

    What stands further up was quoted more likely than meant.
    """
    if marks is None:
        return Start.BEHIND
    end = prompt.rstrip()
    if end.endswith(marks.open):
        return Start.INSIDE
    return Start.BEHIND if end.endswith(marks.close) else Start.BEFORE


def start_of_chat(prompt: str, tail: str, marks: ReasoningMarks | None) -> Start:
    """Return where a rendered chat leaves the model.

    Args:
        prompt: all of it.
        tail: the part of it that begins the answer; blank where the template writes none.
        marks: of the model.
    """
    if marks is None or not tail.strip():
        return start_of(prompt, marks)
    opened, closed = tail.rfind(marks.open), tail.rfind(marks.close)
    if opened == closed == -1:
        return Start.BEFORE
    return Start.INSIDE if opened > closed else Start.BEHIND


def start_of_answer(begun: str, marks: ReasoningMarks | None) -> Start:
    """Return where an answer stands that the model is to go on with.

    Args:
        begun: the text of it so far.
        marks: of the model.
    """
    if marks is None:
        return Start.BEHIND
    if not begun.strip():
        return Start.BEFORE
    return Start.INSIDE if begun.rfind(marks.open) > begun.rfind(marks.close) else Start.BEHIND


def _checked(opening: str, closing: str) -> ReasoningMarks:
    for mark in (opening, closing):
        if not 1 <= len(mark) <= MAX_MARK_CHARS or mark != mark.strip():
            raise MarksError(f"a mark has 1 to {MAX_MARK_CHARS} characters, none of them a space at its ends")
    if opening in closing or closing in opening:
        raise MarksError("one mark contains the other")
    return ReasoningMarks(opening, closing)
