"""Options of a generation that leave its answer as it is, and what they set in its request."""

from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.fields import checked

_SPEED = "Speed (the answer stays the same)"

MAX_DRAFT_TOKENS = 10
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What spares the server work without changing the answer."""

    speculate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Guess up to N tokens ahead (1 to 10) from what was said before: faster where text repeats itself; "
            "0: never guess.",
            rich_help_panel=_SPEED,
        ),
    ] = None
    bypass_prefix_cache: Annotated[
        bool,
        typer.Option(
            "--no-prefix-cache",
            help="Compute the whole prompt anew, and keep nothing of it for later ones.",
            rich_help_panel=_SPEED,
        ),
    ] = False

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: a number is out of range.
        """
        if self.speculate is not None:
            spec.speculation.enabled = self.speculate != 0
            spec.speculation.max_draft_tokens = checked("--speculate", self.speculate, MAX_DRAFT_TOKENS)
        if self.bypass_prefix_cache:
            spec.cache.bypass_prefix_cache = True


def set_logprobs(spec: generation_pb2.GenerationSpec, count: int | None) -> None:
    """Ask for log-probabilities of each token and of so many alternatives; None: for none.

    Raises:
        UsageError: the number is out of range.
    """
    if count is not None:
        spec.output.top_logprobs = checked("--logprobs", count, MAX_LOGPROBS)
