"""`expert-trace`: what a trace of experts says of the memory that they need."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.failures import CliError, UsageError
from gateway.cli.trace_file import read_trace
from gateway.cli.trace_plot import check_plot, write_plot
from gateway.cli.trace_summary import TraceSummary, summed_up
from gateway.cli.verb import JsonFlag, verb

WINDOW_TOKENS = 512
MAX_EXPERTS = 4096


class EmptyTraceError(CliError):
    """Raised when a trace was begun and nothing is in it yet."""

    code = "FAILED_PRECONDITION"
    reason = "TRACE_EMPTY"

    def __init__(self, file: Path) -> None:
        super().__init__(f"{file}: nothing is in it yet: the model that writes it has routed no token")


@verb
def expert_trace(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What a model's expert_trace named.")],
    window: Annotated[
        int, typer.Option(min=16, max=1 << 20, metavar="TOKENS", help="Length of a window of time, in tokens.")
    ] = WINDOW_TOKENS,
    layer_experts: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_EXPERTS,
            metavar="N",
            help="Experts that each layer has. Else: as many as the highest that was chosen says.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it too; needs matplotlib.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Sum up which experts of a model were needed.

    A model writes FILE while expert_trace is set in its settings. Three
    things are told, each of a layer, over all layers:

    Coverage: how many experts, were they chosen well, do most of the work.
    Working set: how many different ones a stretch of text needs.
    Stability: what the most used experts of one window of time are worth in
    the next, which is what slots that are kept for them would bring.

    --plot needs: pip install 'pomona[plot]'

    With --json: {"tokens", "layers", "experts", "chosen", "used", "coverage":
    [{"experts", "work"}], "needed": [{"work", "experts"}], "workingSets":
    [{"tokens", "mean", "largest"}], "windowTokens", "stability":
    [{"experts", "overlap", "hits", "leastHits"}]}; shares are 0 to 1.
    """
    if plot is not None:
        check_plot(plot)
    summary = summed_up(read_trace(file), TraceSummary(window, layer_experts))
    if not summary.num_choices:
        raise EmptyTraceError(file)
    if layer_experts is not None and layer_experts < summary.num_experts:
        raise UsageError(
            f"--layer-experts: {layer_experts} are too few, for expert {summary.num_experts - 1} was chosen"
        )
    if as_json:
        output.emit(_as_dict(summary), indent=2)
    else:
        _print(summary)
    if plot is not None:
        write_plot(summary, file.name, plot)
        output.notice(f"drawn: {plot}")


def _print(summary: TraceSummary) -> None:
    output.facts(_facts(summary))
    output.line()
    rows = [(f"{share:.0%}", str(count), _share(count, summary)) for share, count in summary.needed()]
    output.table(("OF THE WORK", "EXPERTS OF A LAYER", "SHARE"), rows)
    output.line()
    rows = [(f"{each.tokens:,}", f"{each.mean:.1f}", str(each.largest)) for each in summary.working_sets()]
    output.table(("TOKENS IN A ROW", "EXPERTS NEEDED", "AT MOST"), rows)
    output.line()
    if not (kept := list(summary.stability())):
        output.line(f"Too short for two windows of {summary.window_tokens:,} tokens: --window takes fewer.")
        return
    output.table(
        ("EXPERTS KEPT", "SHARE", "WORK OF THE NEXT WINDOW", "AT LEAST", "STILL THE MOST USED"),
        [
            (
                str(each.experts),
                _share(each.experts, summary),
                *(f"{share:.1%}" for share in (each.hits, each.least_hits, each.overlap)),
            )
            for each in kept
        ],
    )


def _facts(summary: TraceSummary) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{summary.num_tokens:,}"
    yield "layers", str(summary.num_layers)
    yield "experts", f"{summary.num_experts} a layer, {summary.num_chosen} for a token, {summary.num_used:.1f} used"


def _share(experts: int, summary: TraceSummary) -> str:
    return f"{experts / summary.num_experts:.1%}"


def _as_dict(summary: TraceSummary) -> dict[str, Any]:
    return {
        "tokens": summary.num_tokens,
        "layers": summary.num_layers,
        "experts": summary.num_experts,
        "chosen": summary.num_chosen,
        "used": summary.num_used,
        "coverage": [{"experts": experts, "work": share} for experts, share in summary.coverage()],
        "needed": [{"work": share, "experts": experts} for share, experts in summary.needed()],
        "workingSets": [asdict(each) for each in summary.working_sets()],
        "windowTokens": summary.window_tokens,
        "stability": [
            {"experts": each.experts, "overlap": each.overlap, "hits": each.hits, "leastHits": each.least_hits}
            for each in summary.stability()
        ],
    }
