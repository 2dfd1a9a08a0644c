"""Whisper base on 30 seconds and on five minutes of speech: Pomona beside mlx-whisper and faster-whisper.

Every figure comes from a process of its own, with the same weights, samples and number of threads, in turns: greedy and
with five beams, at temperature 0 alone, each window told what was said before, no times of words. mlx-whisper is
measured as it installs (float16) and as nobody gets it without work (float32 weights, OpenBLAS); it has no beams.
faster-whisper computes in float32 and in int8. Peers that an interpreter lacks are left out by name.

The real-time factor is the time that a transcript takes by the length of the speech. A peer that falls into a loop pays
for what it writes, so the number of words stands beside it. `side by side` is Pomona alone: eight clips of 30 seconds
at once against one after the other, in the process.

Speech is what `--audio` names, again and again until it is long enough: WAV, mono, 16 bits, 16,000 samples a second.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench import report
from bench.load.transcribers import LOADERS, NUM_CLIPS, SAMPLE_RATE_HZ, side_by_side

LENGTHS_S = (30, 300)
BEAMS = (1, 5)
WINDOW_S = 30
RECORDINGS = report.ROOT / "tests" / "models" / "whisper" / "recordings"
PACKAGES = ("mlx", "mlx-whisper", "faster-whisper", "ctranslate2", "numpy")


@dataclass(frozen=True)
class System:
    """One way to run the model.

    Attributes:
        what: for people.
        code: whose.
        dtype: what weights or arithmetic are asked for.
        has_beams: whether it can search with beams.
        is_slow: whether it is measured once, without a warm-up.
    """

    what: str
    code: Literal["pomona", "mlx_whisper", "faster_whisper"]
    dtype: str
    has_beams: bool = True
    is_slow: bool = False


SYSTEMS: Mapping[str, System] = {
    "pomona": System("Pomona, fast path", "pomona", "float32"),
    "mlx_whisper": System("mlx-whisper as installed", "mlx_whisper", "float16", has_beams=False, is_slow=True),
    "mlx_whisper_float32": System("mlx-whisper, float32, OpenBLAS", "mlx_whisper", "float32", has_beams=False),
    "faster_whisper": System("faster-whisper, float32", "faster_whisper", "float32"),
    "faster_whisper_int8": System("faster-whisper, int8", "faster_whisper", "int8"),
}
# (peer, least ratio of its time to ours)
GOALS = (("mlx_whisper", 10.0), ("mlx_whisper_float32", 1.0), ("faster_whisper", 1.0))


def main() -> None:
    """Measure, print the figures and write `bench/results/whisper.json`."""
    arguments = parser().parse_args()
    if arguments.measure:
        name, folder, samples, beams = arguments.measure
        found = measure(SYSTEMS[name], Path(folder), Path(samples), int(beams), arguments.rounds, arguments.threads)
        print(json.dumps(found))
        return
    print(report.heading("Whisper base: speech to text"))
    interpreters = found_interpreters(arguments)
    with tempfile.TemporaryDirectory(prefix="whisper-") as folder:
        results = measure_all(arguments, interpreters, Path(folder))
    show(results)
    payload = {"benchmark": "whisper", "threads": arguments.threads, "results": results, "goals": goals(results)}
    if arguments.dry_run:
        print("nothing is written")
    else:
        print("written:", report.write("whisper", payload).relative_to(report.ROOT))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--audio", type=Path, nargs="+", default=sorted(RECORDINGS.glob("*.wav")), help="recordings")
    made.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS_S), help="seconds of speech")
    made.add_argument("--beams", type=int, nargs="+", default=list(BEAMS), help="texts side by side")
    made.add_argument("--rounds", type=int, default=3, help="transcripts of each, but of slow peers")
    made.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    made.add_argument("--only", nargs="*", choices=SYSTEMS, default=list(SYSTEMS), help="measure these systems")
    made.add_argument("--mlx-whisper-python", default=sys.executable, help="an interpreter that has mlx-whisper")
    made.add_argument("--faster-whisper-python", default=sys.executable, help="an interpreter that has faster-whisper")
    made.add_argument("--limit", type=float, default=1800.0, help="seconds for one figure")
    made.add_argument("--dry-run", action="store_true", help="write no file")
    made.add_argument("--measure", nargs=4, metavar=("SYSTEM", "FOLDER", "SAMPLES", "BEAMS"), help=argparse.SUPPRESS)
    return made


def found_interpreters(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what runs each system; one that lacks its package is named and left out."""
    by_code = {
        "pomona": sys.executable,
        "mlx_whisper": arguments.mlx_whisper_python,
        "faster_whisper": arguments.faster_whisper_python,
    }
    found: dict[str, str] = {}
    for name in arguments.only:
        system = SYSTEMS[name]
        module = "models" if system.code == "pomona" else system.code
        command = [by_code[system.code], "-c", f"import importlib.util as u; exit(u.find_spec({module!r}) is None)"]
        if subprocess.run(command, cwd=report.ROOT, timeout=60, check=False).returncode == 0:
            found[name] = by_code[system.code]
        else:
            print(
                f"{system.what} is left out: {system.code} is not installed (--{system.code.replace('_', '-')}-python)"
            )
    return found


def measure_all(
    arguments: argparse.Namespace, interpreters: Mapping[str, str], folder: Path
) -> dict[str, dict[str, Any]]:
    """Return for each load, `30 s, greedy` and so on, each system's figures."""
    weights = write_forms(interpreters, folder)
    results: dict[str, dict[str, Any]] = {}
    for length_s in arguments.lengths:
        samples = write_samples(arguments.audio, length_s, folder)
        for beams in arguments.beams:
            load = f"{length_s} s, {'greedy' if beams == 1 else f'{beams} beams'}"
            for name, interpreter in interpreters.items():
                if beams > 1 and not SYSTEMS[name].has_beams:
                    continue
                print(f"  {load}: {SYSTEMS[name].what}", file=sys.stderr)
                command = [interpreter, "-P", "-m", "bench.whisper", "--threads", str(arguments.threads)]
                command += ["--rounds", str(arguments.rounds)]
                command += ["--measure", name, str(weights[name]), str(samples), str(beams)]
                found = _in_a_process(command, arguments.threads, arguments.limit)
                if found is not None:
                    results.setdefault(load, {})[name] = summarized(name, found, length_s)
    return results


def write_forms(names: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Write what the systems load, and return it by system."""
    from tests.models.whisper.oracle import write_as_mlx
    from tests.support.whisper_base import whisper_base_path

    base = whisper_base_path()
    paths: dict[str, Path] = {}
    for name in names:
        system = SYSTEMS[name]
        paths[name] = base
        if system.code == "mlx_whisper":
            paths[name] = write_as_mlx(folder / system.dtype, base, system.dtype)
    return paths


def write_samples(paths: Sequence[Path], length_s: int, folder: Path) -> Path:
    """Write so many seconds of the recordings, again and again in their order, and return the file."""
    import numpy as np

    speech = np.concatenate([_samples(path) for path in paths])
    file = folder / f"{length_s}.npy"
    np.save(file, np.resize(speech, length_s * SAMPLE_RATE_HZ))
    return file


def _samples(path: Path) -> Any:
    import numpy as np

    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (SAMPLE_RATE_HZ, 1, 2):
            sys.exit(f"{path.name} is not mono of {SAMPLE_RATE_HZ} samples a second and 16 bits")
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def _in_a_process(command: Sequence[str], threads: int, limit_s: float) -> dict[str, Any] | None:
    environment = {**os.environ, "PYTHONPATH": str(report.ROOT)}
    environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
    try:
        done = subprocess.run(
            command,
            cwd=report.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=limit_s,
            check=True,
        )
    except subprocess.TimeoutExpired:
        print(f"    took more than {limit_s:g} s and is left out", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def measure(system: System, folder: Path, samples_file: Path, beams: int, rounds: int, threads: int) -> dict[str, Any]:
    """Time one system in this process, which must not have imported MLX before.

    Returns:
        `seconds` of each transcript, `load_s`, `peak_mib` of this process, `num_words`, the versions of what ran, and
        for Pomona greedy `side_by_side`: seconds for eight clips at once, and one after the other.
    """
    import numpy as np

    samples = np.load(samples_file)
    started = time.perf_counter()
    transcribe = LOADERS[system.code](folder, system.dtype, threads)
    load_s = time.perf_counter() - started
    if not system.is_slow:
        transcribe(samples[: 2 * SAMPLE_RATE_HZ], beams)
    seconds: list[float] = []
    text = ""
    for _ in range(1 if system.is_slow else rounds):
        started = time.perf_counter()
        text = transcribe(samples, beams)
        seconds.append(time.perf_counter() - started)
    found: dict[str, Any] = {
        "seconds": seconds,
        "load_s": load_s,
        "peak_mib": report.peak_mib(),
        "num_words": len(text.split()),
    }
    if system.code == "pomona" and beams == 1 and samples.size == WINDOW_S * SAMPLE_RATE_HZ:
        found["side_by_side"] = side_by_side(folder, threads, samples)
    python = ".".join(map(str, sys.version_info[:3]))
    return {**found, "versions": {"python": python, **report.versions(PACKAGES)}}


def summarized(name: str, found: Mapping[str, Any], length_s: int) -> dict[str, Any]:
    """Reduce what a process measured to its spread."""
    kept = {key: found[key] for key in ("load_s", "peak_mib", "num_words", "versions", "side_by_side") if key in found}
    factors = [seconds / length_s for seconds in found["seconds"]]
    times = {"seconds": report.summary(found["seconds"]), "real_time_factor": report.summary(factors)}
    return {"what": SYSTEMS[name].what, **times, **kept}


def goals(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for every load and peer that ran, its time over ours, by medians and by best runs."""
    found: list[dict[str, Any]] = []
    for load, systems in results.items():
        for peer, least in GOALS:
            if "pomona" in systems and peer in systems:
                ours, theirs = systems["pomona"]["seconds"], systems[peer]["seconds"]
                ratio, ratio_of_best = theirs["median"] / ours["median"], theirs["min"] / ours["min"]
                goal = {"load": load, "peer": peer, "least": least, "ratio": ratio, "ratio_of_best": ratio_of_best}
                found.append({**goal, "holds": ratio >= least})
    return found


def show(results: Mapping[str, Any]) -> None:
    """Print a block a load, a line a system, then the goals."""
    for load, systems in results.items():
        print(f"\n{load}")
        for system in systems.values():
            factor = system["real_time_factor"]["median"]
            print(f"  {system['what']:32}{report.spread(system['seconds'], 's')}", end="")
            print(f"  {factor:.3f} of real time, {system['peak_mib']:.0f} MiB, {system['num_words']} words")
            if "side_by_side" in system:
                both = system["side_by_side"]
                print(f"    {NUM_CLIPS} clips at once {both['at_once']:.2f} s, one by one {both['one_by_one']:.2f} s")
    print()
    for goal in goals(results):
        verdict = "holds" if goal["holds"] else "DOES NOT HOLD"
        print(f"{goal['load']}, {goal['peer']}: at least {goal['least']:g} times our time: {verdict},", end=" ")
        print(f"{goal['ratio']:.2f} by medians, {goal['ratio_of_best']:.2f} by best runs")


if __name__ == "__main__":
    main()
