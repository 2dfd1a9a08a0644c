"""Options of how a model thinks before it answers, and what they set in a request."""

from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.fields import checked

_PANEL = "Reasoning (of models that think before they answer)"


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """Whether and how long the model thinks, and whether that is printed."""

    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Unset: as the model does by itself.", rich_help_panel=_PANEL),
    ] = None
    max_reasoning_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Longest reasoning; then it answers.", rich_help_panel=_PANEL)
    ] = None
    hide_reasoning: Annotated[
        bool, typer.Option("--hide-reasoning", help="Print the answer only.", rich_help_panel=_PANEL)
    ] = False

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: a number does not fit its field.
        """
        if self.thinking is not None:
            spec.chat.enable_thinking = self.thinking
        if self.max_reasoning_tokens is not None:
            spec.stopping.max_reasoning_tokens = checked("--max-reasoning-tokens", self.max_reasoning_tokens)
