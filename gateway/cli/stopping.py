"""Options of when an answer ends, and what they set in a request."""

from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.fields import checked

_PANEL = "End of the answer"


@dataclass(frozen=True, slots=True)
class StoppingOptions:
    """When the answer ends; what is unset is left to the model."""

    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Longest answer; unset as long as the context allows.", rich_help_panel=_PANEL),
    ] = None
    min_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Shortest answer: nothing ends it before.", rich_help_panel=_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End the answer before this text of 1 to 256 bytes; may repeat, 16 times at most.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    stop_id: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ID", help="End the answer before this token; may repeat, 64 times at most.", rich_help_panel=_PANEL
        ),
    ] = None
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Print what ended the answer, too.", rich_help_panel=_PANEL)
    ] = False
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on where the model would end.", rich_help_panel=_PANEL),
    ] = False

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: a number does not fit its field.
        """
        for name in ("max_tokens", "min_tokens"):
            if (value := getattr(self, name)) is not None:
                setattr(spec.stopping, name, checked(f"--{name.replace('_', '-')}", value))
        if self.stop:
            spec.stopping.stop_strings.extend(self.stop)
        if self.stop_id:
            spec.stopping.stop_token_ids.extend(checked("--stop-id", each) for each in self.stop_id)
        if self.include_stop:
            spec.stopping.include_stop_in_output = True
        if self.ignore_eos:
            spec.stopping.ignore_eos = True
