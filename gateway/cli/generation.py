"""Options of a generation, and what they set in its request."""

from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.failures import UsageError

UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1
_SAMPLING = "Sampling (unset: the model's own defaults)"
_SPEED = "Speed (the answer stays the same)"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen and when the answer stops; what is unset is left to the model."""

    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.", rich_help_panel=_SAMPLING)] = None
    min_tokens: Annotated[
        int | None, typer.Option(help="Shortest answer: nothing ends it before.", rich_help_panel=_SAMPLING)
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the likeliest.", rich_help_panel=_SAMPLING)
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest with this share.", rich_help_panel=_SAMPLING)
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same answer.", rich_help_panel=_SAMPLING)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the answer before this text; may repeat.", rich_help_panel=_SAMPLING),
    ] = None
    sequences: Annotated[
        int | None,
        typer.Option(
            "--sequences",
            "-n",
            metavar="N",
            help="Give N answers, each drawn on its own; all are alike at temperature 0.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: a number does not fit its field.
        """
        for name in ("temperature", "top_p"):
            if (value := getattr(self, name)) is not None:
                setattr(spec.sampling, name, value)
        if self.seed is not None:
            spec.sampling.seed = _checked("--seed", self.seed, UINT64_MAX)
        if self.sequences is not None:
            spec.sampling.num_sequences = _checked("--sequences", self.sequences)
        if self.max_tokens is not None:
            spec.stopping.max_tokens = _checked("--max-tokens", self.max_tokens)
        if self.min_tokens is not None:
            spec.stopping.min_tokens = _checked("--min-tokens", self.min_tokens)
        if self.stop:
            spec.stopping.stop_strings.extend(self.stop)


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
            UsageError: a number does not fit its field.
        """
        if self.speculate is not None:
            spec.speculation.enabled = self.speculate != 0
            spec.speculation.max_draft_tokens = _checked("--speculate", self.speculate)
        if self.bypass_prefix_cache:
            spec.cache.bypass_prefix_cache = True


def set_logprobs(spec: generation_pb2.GenerationSpec, count: int | None) -> None:
    """Ask for log-probabilities of each token and of so many alternatives; None: for none.

    Raises:
        UsageError: the number does not fit its field.
    """
    if count is not None:
        spec.output.top_logprobs = _checked("--logprobs", count)


def _checked(option: str, value: int, most: int = UINT32_MAX) -> int:
    """Return `value` where its field can hold it; whether it makes sense is for the server to say."""
    if not 0 <= value <= most:
        raise UsageError(f"{option}: not within 0 to {most}")
    return value
