"""Options of how tokens are chosen, and what they set in a request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.failures import UsageError
from gateway.cli.fields import INT32_MAX, UINT32_MAX, UINT64_MAX, checked
from gateway.cli.flags import FLAGS

_PANEL = "Sampling (unset: the model's own defaults)"
# Inclusive, but for the beginning of those in ABOVE.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, INT32_MAX),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 0.5),
    "repetition_penalty": (0, 100),
    "frequency_penalty": (-100, 100),
    "presence_penalty": (-100, 100),
    "penalty_window": (0, UINT32_MAX),
    "seed": (0, UINT64_MAX),
}
ABOVE = frozenset({"top_p", "repetition_penalty"})
MAX_BIAS = 1000
MAX_SEQUENCES = 16


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen; what is unset is left to the model."""

    temperature: Annotated[
        float | None, typer.Option(help="0 to 100; 0 always takes the likeliest.", rich_help_panel=_PANEL)
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Above 0, at most 1: choose among the likeliest with this share; 1 among all.", rich_help_panel=_PANEL
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Choose among the K likeliest; 0 among all.", metavar="K", rich_help_panel=_PANEL)
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="0 to 1: leave out what is less likely than this share of the likeliest.", rich_help_panel=_PANEL
        ),
    ] = None
    xtc_probability: Annotated[
        float | None,
        typer.Option(
            help="0 to 1: how often the likely tokens but the least likely of them are left out.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    xtc_threshold: Annotated[
        float | None,
        typer.Option(help="0 to 0.5: from which probability on a token is likely to that end.", rich_help_panel=_PANEL),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Above 0, at most 100: makes tokens that were there less likely; 1 does nothing.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="-100 to 100: taken off for each time that a token was there.", rich_help_panel=_PANEL),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="-100 to 100: taken off once where a token was there.", rich_help_panel=_PANEL),
    ] = None
    penalty_window: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="How far back the three penalties look; unset 20, 0 the whole sequence.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS",
            help="Add this, -1000 to 1000, to a token's logit; may repeat, 1024 times at most.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same answer.", rich_help_panel=_PANEL)
    ] = None
    sequences: Annotated[
        int | None,
        typer.Option(
            "--sequences",
            "-n",
            metavar="N",
            help="1 to 16: give N answers, each drawn on its own; all are alike at temperature 0.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`.

        Raises:
            UsageError: a value is out of range.
        """
        for name, (least, most) in RANGES.items():
            if (value := getattr(self, name)) is not None:
                setattr(spec.sampling, name, checked(FLAGS[name], value, most, least, is_open=name in ABOVE))
        if self.sequences is not None:
            spec.sampling.num_sequences = checked("--sequences", self.sequences, MAX_SEQUENCES, 1)
        for token_id, bias in _biases(self.logit_bias or ()).items():
            spec.sampling.logit_bias[token_id] = bias


def _biases(texts: Iterable[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            token_id, bias = int(name), float(value)
        except ValueError as error:
            raise UsageError(f"--logit-bias: {text!r} is not ID=BIAS, such as 42=-5") from error
        if checked("--logit-bias", token_id) in biases:
            raise UsageError(f"--logit-bias: token {token_id} is given twice")
        biases[token_id] = checked("--logit-bias", bias, MAX_BIAS, -MAX_BIAS)
    return biases
