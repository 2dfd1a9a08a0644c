"""Where an answer goes as it comes: text and tool calls to standard output, reasoning to standard error."""

import sys

from rich.text import Text

from gateway.cli import output
from gateway.cli.sequence import Kind

CALL_MARK = "[tool call] "
REASONING_BEGINS = "--- reasoning"
REASONING_ENDS = "--- answer"


class Screen:
    """Prints parts of an answer, each kind apart from the others.

    Reasoning is dimmed on a terminal and stands between two marks elsewhere, so that standard output has the answer
    and nothing else.

    Args:
        hide_reasoning: do not print it.
    """

    def __init__(self, *, hide_reasoning: bool = False) -> None:
        self._hides_reasoning = hide_reasoning
        self._last: Kind | None = None
        self._is_mid_answer = False
        self._is_mid_reasoning = False
        self._errors = output.console(stderr=True)
        self._is_dimmed = self._errors.is_terminal and not self._errors.is_dumb_terminal

    def write(self, kind: Kind, text: str) -> None:
        """Print more of an answer."""
        if kind == "reasoning":
            if not self._hides_reasoning:
                self._write_reasoning(text)
                self._last = kind
            return
        if self._last == "reasoning":
            self._end_reasoning()
            output.notice("" if self._is_dimmed else REASONING_ENDS)
        if kind == "call":
            self._end_answer()
            output.line(f"{CALL_MARK}{text}")
        else:
            # Noted first: Ctrl-C may come between the two.
            self._is_mid_answer = not text.endswith("\n")
            output.write(text)
        self._last = kind

    def end(self) -> None:
        """End the lines that were begun; what comes next is another answer, or none."""
        self._end_reasoning()
        self._end_answer()
        self._last = None

    def _write_reasoning(self, text: str) -> None:
        if self._last != "reasoning":
            if sys.stdout.isatty():
                self._end_answer()
            if not self._is_dimmed:
                output.notice(REASONING_BEGINS)
        self._is_mid_reasoning = not text.endswith("\n")
        shown = output.printable(text)
        if self._is_dimmed:
            self._errors.print(Text(shown, style="dim"), end="", soft_wrap=True)
        else:
            sys.stderr.write(shown)
        sys.stderr.flush()

    def _end_reasoning(self) -> None:
        if self._is_mid_reasoning:
            output.notice("")
            self._is_mid_reasoning = False

    def _end_answer(self) -> None:
        if self._is_mid_answer:
            output.line()
            self._is_mid_answer = False
