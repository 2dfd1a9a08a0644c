"""What every measurement says beside its numbers: the machine, the versions, the date, and how far samples spread."""

import datetime as dt
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PACKAGES = (
    "mlx",
    "mlx-lm",
    "numpy",
    "grpcio",
    "protobuf",
    "tokenizers",
    "llguidance",
    "scipy-openblas32",
    "nanobind",
)
# These choose the kernels and threads of a BLAS, so numbers without them mean little.
ENVIRONMENT = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def machine() -> dict[str, Any]:
    """Describe this machine and what is installed on it."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
        "load_average": round(os.getloadavg()[0], 2),  # runnable threads in the last minute: 0 on a quiet machine
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def summary(samples: Sequence[float]) -> dict[str, float | int]:
    """Reduce samples to their spread.

    Args:
        samples: one or more measurements of the same thing, in one unit.

    Returns:
        `count`, `min`, `median` and `max`, in that unit.
    """
    return {
        "count": len(samples),
        "min": min(samples),
        "median": statistics.median(samples),
        "max": max(samples),
    }


def quantiles(samples: Sequence[float]) -> dict[str, float | int]:
    """Reduce many samples of the same thing to `count`, `min`, `p50`, `p99` and `max`, in their unit.

    Between two samples a quantile is interpolated; of one, all are that one.
    """
    cuts = statistics.quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else list(samples) * 99
    return {"count": len(samples), "min": min(samples), "p50": cuts[49], "p99": cuts[98], "max": max(samples)}


def write(name: str, payload: Mapping[str, Any]) -> Path:
    """Write `bench/results/NAME.json`: the machine, then `payload`.

    Returns:
        The path of the file.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **payload}, indent=2) + "\n")
    return path


def heading(title: str) -> str:
    """Return the lines that a measurement prints first: what it measures, and where."""
    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    settings = ", ".join(f"{name}={value}" for name, value in facts["environment"].items()) or "no BLAS variable set"
    return (
        f"{title}\n"
        f"  {facts['cpu']} ({facts['architecture']}), {facts['cores']} cores, {facts['memory_gib']} GiB\n"
        f"  {facts['os']}, load average {facts['load_average']}\n"
        f"  Python {facts['python']}, {versions}\n"
        f"  {settings}, {facts['date']}"
    )


def spread(samples: Mapping[str, float | int], unit: str) -> str:
    """Return a summary as text: median, then the extremes in brackets."""
    return f"{samples['median']:10.4g} {unit} [{samples['min']:.4g} to {samples['max']:.4g}, n={samples['count']}]"


def tail(samples: Mapping[str, float | int] | None, unit: str) -> str:
    """Return what `quantiles` gave as text: p50, p99, and the most; a dash for None."""
    if samples is None:
        return "-"
    return f"p50 {samples['p50']:.4g}, p99 {samples['p99']:.4g}, max {samples['max']:.4g} {unit} (n={samples['count']})"


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    # Linux counts what a process held before it became this one into its ru_maxrss, but not into VmHWM.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / (1 << 10)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those that are installed."""
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return what makes the event loop that the product runs on: uvloop's where it is installed, else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _cpu_name() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in facts.items()}
    # Virtual machines hide the marketing name; family and model still tell the generation.
    family = f"family {names['cpu family']} model {names['model']}" if "cpu family" in names else ""
    return f"{names.get('model name', platform.processor())} {family}".strip()
