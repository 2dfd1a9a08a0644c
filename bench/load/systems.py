"""What is measured side by side: Pomona and its peers, each as something that plays a plan."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from bench.load import batches, client, servers
from bench.load.plan import Job, Lane, Stream
from bench.load.prompts import Prompts, prompts_of

# Lanes and a limit in seconds to what came of them.
Play = Callable[[Sequence[Lane], float], list[Stream]]
NAMES = ("pomona", "llama_cpp", "mlx_lm_server_dense", "mlx_lm_batch_dense", "mlx_lm_server", "mlx_lm_batch")
UNUSED_END = "<empty_output>"  # a special token of SmolLM2 that no text has
WARM_UP = (16, 8)  # tokens of prompt and answer
WARM_UP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Setup:
    """What all systems share.

    Attributes:
        gguf: the model.
        threads: that compute.
        folder: where mlx-lm's forms of the model are written.
        llama_server: llama.cpp's program.
        mlx_lm_python: an interpreter that has mlx-lm.
        changes: of Pomona's settings, by dotted name.
    """

    gguf: Path
    threads: int
    folder: Path
    llama_server: Path | None
    mlx_lm_python: str
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def prompts(self) -> Prompts:
        """Return a new maker of prompts: the same for every system."""
        return prompts_of(self.gguf)


@dataclass(frozen=True)
class System:
    """One of them.

    Attributes:
        what: in words.
        version: of what is run, in its own words.
        open: starts it for so many streams of so many tokens each.
        is_slow: it gets the shorter limit.
    """

    what: str
    version: str
    open: Callable[[int, int], AbstractContextManager[Play]]
    is_slow: bool = False


def find(setup: Setup, wanted: Sequence[str]) -> dict[str, System]:
    """Return the wanted systems that are there; say which are left out, and why."""
    found: dict[str, System] = {}
    for name in wanted:
        system = _make(setup, name)
        if isinstance(system, System):
            print(f"{name}: {system.what}, {system.version}")
            found[name] = system
        else:
            print(f"{name} is left out: {system}")
    return found


def _make(setup: Setup, name: str) -> System | str:
    """Return a system, or why it is not there."""
    if name == "pomona":
        return System(
            "Pomona through its gateway",
            metadata.version("pomona"),
            lambda rows, context: _pomona(setup, rows, context),
        )
    if name == "llama_cpp":
        return _llama_cpp(setup)
    version = servers.mlx_lm_version(setup.mlx_lm_python)
    if version is None:
        return f"{setup.mlx_lm_python} has no mlx-lm (--mlx-lm-python names another interpreter)"
    is_dense = name.endswith("_dense")
    form = "float32 weights, OpenBLAS" if is_dense else "as installed"
    if name.startswith("mlx_lm_server"):
        what = f"mlx-lm's server, {form}"
        return System(what, version, lambda _rows, _context: _mlx_server(setup, is_dense=is_dense), not is_dense)
    what = f"mlx-lm's BatchGenerator in process, {form}"
    return System(what, version, lambda _rows, _context: _mlx_batch(setup, is_dense=is_dense), not is_dense)


def _llama_cpp(setup: Setup) -> System | str:
    program = setup.llama_server
    if program is None or not os.access(program, os.X_OK):
        return "no such program (--llama-server names it)"
    gguf, threads, version = setup.gguf, setup.threads, servers.llama_version(program)
    return System(
        "llama.cpp's server",
        version,
        lambda rows, context: _warm(setup, servers.llama_server(program, gguf, threads, rows, context)),
    )


def _pomona(setup: Setup, rows: int, context: int) -> AbstractContextManager[Play]:
    changes = {"models.context_tokens": context, **setup.changes}
    return _warm(setup, servers.pomona(setup.gguf, setup.threads, rows, changes))


def _mlx_server(setup: Setup, *, is_dense: bool) -> AbstractContextManager[Play]:
    folder = write_form(setup, "dense" if is_dense else "as_stored")
    return _warm(setup, servers.mlx_lm_server(setup.mlx_lm_python, folder, setup.threads, openblas=is_dense))


@contextmanager
def _mlx_batch(setup: Setup, *, is_dense: bool) -> Generator[Play]:
    folder = write_form(setup, "dense" if is_dense else "as_stored")
    python, threads = setup.mlx_lm_python, setup.threads
    yield lambda lanes, limit_s: batches.run(python, folder, lanes, limit_s, threads, openblas=is_dense)


@contextmanager
def _warm(setup: Setup, server: AbstractContextManager[dict[str, Any]]) -> Generator[Play]:
    """Open a server and have it answer once."""
    with server as target:
        client.run([Lane("warm-up", (_warm_up(setup),))], WARM_UP_LIMIT_S, target)
        yield lambda lanes, limit_s: client.run(lanes, limit_s, target)


def _warm_up(setup: Setup) -> Job:
    """Return a prompt that begins like no other."""
    prompt_tokens, num_tokens = WARM_UP
    job = prompts_of(setup.gguf, seed=0).job(prompt_tokens, num_tokens)
    return Job(f"warm {job.prompt}", job.token_ids, num_tokens)


def write_form(setup: Setup, form: Literal["as_stored", "dense"]) -> Path:
    """Write a form of the model for mlx-lm, once, and return its folder."""
    from bench import mlx_folder

    folder = setup.folder / form
    if not folder.exists():
        mlx_folder.write(setup.gguf, folder, form)
        mlx_folder.write_tokenizer(setup.gguf, folder, UNUSED_END)
    return folder
