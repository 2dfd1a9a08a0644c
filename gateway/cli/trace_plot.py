"""Draws what a trace of experts says. matplotlib is an extra of its own: nothing else here draws."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.cli.failures import SetupError, UsageError
from gateway.cli.trace_summary import TraceSummary

EXTRA = "pomona[plot]"
SIZE_INCHES = (15.0, 4.5)
DOTS_PER_INCH = 120


def check_plot(file: Path) -> None:
    """Refuse to draw before anything is read.

    Raises:
        UsageError: the file is no PNG, or has no folder.
        SetupError: matplotlib is not installed.
    """
    if file.suffix.lower() != ".png":
        raise UsageError(f"--plot: {file} must end with .png")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {file.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise SetupError(f"--plot needs matplotlib: pip install '{EXTRA}'")


def write_plot(summary: TraceSummary, title: str, file: Path) -> None:
    """Draw coverage, working sets and stability side by side.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, 3)
    _draw_coverage(axes[0], summary)
    _draw_working_sets(axes[1], summary)
    _draw_stability(axes[2], summary)
    try:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    except OSError as error:
        raise UsageError(f"--plot: cannot write {file}: {error.strerror}") from error


def _draw_coverage(axes: Any, summary: TraceSummary) -> None:
    points = list(summary.coverage())
    axes.set_title("coverage")
    axes.plot([0, *(experts for experts, _ in points)], [0, *(_percent(share) for _, share in points)])
    axes.plot([0, summary.num_experts], [0, 100], linestyle=":", color="grey")
    _label(axes, "most used experts of a layer", "of the work, %", top=105)


def _draw_working_sets(axes: Any, summary: TraceSummary) -> None:
    sets = list(summary.working_sets())
    names = [f"{each.tokens:,}" for each in sets]
    axes.set_title("working set")
    axes.bar(names, [each.mean for each in sets], color="tab:blue", label="mean")
    axes.plot(names, [each.largest for each in sets], "k_", markersize=24, label="largest")
    axes.axhline(summary.num_experts, linestyle=":", color="grey")
    axes.legend()
    _label(axes, "tokens in a row", "experts of a layer", top=summary.num_experts * 1.05)


def _draw_stability(axes: Any, summary: TraceSummary) -> None:
    found = list(summary.stability())
    experts = [each.experts for each in found]
    axes.set_title(f"stability, windows of {summary.window_tokens:,} tokens")
    _curve(axes, experts, [each.hits for each in found], "work of the next window")
    _curve(axes, experts, [each.least_hits for each in found], "the same, worst window")
    _curve(axes, experts, [each.overlap for each in found], "still the most used")
    if found:
        axes.legend()
    _label(axes, "experts of a layer that are kept", "%", top=105)


def _curve(axes: Any, x: Sequence[float], shares: Sequence[float], label: str) -> None:
    axes.plot(x, [_percent(share) for share in shares], marker="o", label=label)


def _label(axes: Any, x: str, y: str, top: float) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, top)


def _percent(share: float) -> float:
    return 100 * share
