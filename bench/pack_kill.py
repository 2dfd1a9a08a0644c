"""What builders of packs leave that are killed at random instants, and that begin side by side.

Each round starts a real builder on random experts, in half of the rounds over a pack that is there, and kills it at
some instant of its life. What is then at the pack's place must be nothing or a whole pack, of which every byte is
compared with its hash. Then pairs of builders begin at once: one file is made, and it is whole.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench import report
from models.checkpoint.folder import read_folder_tensors
from models.experts.pack import open_pack
from models.experts.pack_builder import PARTIAL_FILE, PackPlan, plan_pack, remove_pack

EXPERTS, INNER, WIDTH = 32, 256, 1024
LIMIT_S = 120.0
BUILD, REBUILD = '{"action": "build"}', '{"action": "rebuild"}'


def main() -> None:
    """Run the rounds, print their figures and write `bench/results/pack_kill.json`."""
    arguments = parse(sys.argv[1:])
    print(report.heading("What killed builders of packs leave"))
    print(f"seed {arguments.seed}, {arguments.rounds} kills, {arguments.pairs} pairs", flush=True)
    dice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_experts(folder, arguments.megabytes)
        plan = plan_pack(folder, read_folder_tensors(folder)[0])
        whole_s = timed_build(folder)
        kills = Counter(kill_round(plan, dice, whole_s, has_pack=index % 2 == 1) for index in range(arguments.rounds))
        pairs = Counter(pair_round(plan) for _ in range(arguments.pairs))
    results: dict[str, Any] = {
        "pack_bytes": plan.nbytes,
        "build_s": round(whole_s, 3),
        "bytes_per_s": round(plan.nbytes / whole_s),
        "left_by_killed": dict(sorted(kills.items())),
        "made_by_pairs": dict(sorted(pairs.items())),
    }
    print(json.dumps(results, indent=1))
    print(f"written to {report.write('pack_kill', {'seed': arguments.seed, **results})}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; its disk is the one that is tried")
    return parser.parse_args(arguments)


def write_experts(folder: Path, megabytes: int) -> None:
    """Write layers of random experts, so many megabytes together."""
    stack = np.random.default_rng(0).integers(0, 1 << 32, (EXPERTS, INNER, WIDTH), dtype=np.uint32)
    count = max(2, megabytes * 1_000_000 // stack.nbytes)
    save_file(
        {f"model.layers.{i}.mlp.switch_mlp.up_proj.weight": stack + i for i in range(count)},
        folder / "model.safetensors",
    )


def builder(folder: Path, action: str) -> "subprocess.Popen[bytes]":
    """Start a builder; its lines are for who reads them."""
    argv = (sys.executable, "-P", "-m", "worker", "pack", str(folder), action)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def timed_build(folder: Path) -> float:
    """Return how long a build takes from its first line to its end, in seconds."""
    with builder(folder, REBUILD) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began_s = time.monotonic()
        child.communicate(timeout=LIMIT_S)
    return time.monotonic() - began_s


def kill_round(plan: PackPlan, dice: random.Random, whole_s: float, *, has_pack: bool) -> str:
    """Kill a builder, and say what it was doing last and what it left; raises where that is no whole pack."""
    if not has_pack:
        remove_pack(plan.path.parent)
    elif not plan.path.exists():
        timed_build(plan.path.parent)
    with builder(plan.path.parent, REBUILD) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            child.wait(dice.uniform(0, 1.5 * whole_s))
        child.kill()
        said = [first, *child.stdout]
    assert plan.path.exists() or not has_pack, "the pack that was there is gone"
    return f"{last_phase(said)}: {what_is_left(plan)}"


def pair_round(plan: PackPlan) -> str:
    """Start two builders at once, and say how they ended; raises where no whole pack is left."""
    remove_pack(plan.path.parent)
    children = [builder(plan.path.parent, BUILD) for _ in range(2)]
    ends = sorted(end_of(child) for child in children)
    left = what_is_left(plan)
    assert left == "a whole pack", ends
    assert "new" in ends, ends
    return " and ".join(ends)


def end_of(child: "subprocess.Popen[bytes]") -> str:
    """Return how a builder ended, in a word."""
    lines = child.communicate(timeout=LIMIT_S)[0].splitlines()
    last = json.loads(lines[-1])
    if "pack" in last:
        return "new" if last["pack"]["isNew"] else "kept"
    return str(last["reason"])


def what_is_left(plan: PackPlan) -> str:
    """Say what is at the pack's place and beside it; every byte of a pack is compared."""
    beside = " and an unfinished file" if plan.path.with_name(PARTIAL_FILE).exists() else ""
    if not plan.path.exists():
        return f"no pack{beside}"
    open_pack(plan.path.parent, plan.tensors).check_data(lambda _done, _total: None)
    return f"a whole pack{beside}"


def last_phase(lines: Sequence[bytes]) -> str:
    """Return what a builder said last that it was doing."""
    return next(_phases(reversed(lines)), "starting")


def _phases(lines: Iterator[bytes]) -> Iterator[str]:
    for line in lines:
        with suppress(ValueError):  # the last one may have been cut
            said = json.loads(line)
            yield str(said["progress"]["phase"]) if "progress" in said else next(iter(said))


if __name__ == "__main__":
    main()
