"""Checks of the models: one path against the other, both against mlx-lm, and how fast each is."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath, RowPlan, StepPlan
from worker.finding import Finding
from worker.sample_checkpoint import Shape, write_sample

TINY = Shape(layers=2, width=192, inner=256, vocabulary=320)
# An eighth of SmolLM2-135M: large enough that the kernels decide, small enough that a busy machine is soon done.
SMALL = Shape(layers=4, width=576, inner=1536, vocabulary=4096)
PARITY_TOKENS = 16
SPEED_PROMPT_TOKENS = 64
SPEED_TOKENS = 24
WARMUP_TOKENS = 16
# Two paths round in another order: their logits differ by some units in the last place and no more.
PATH_TOLERANCE = 1e-3

Forward = Callable[[list[int]], mx.array]


@dataclass(frozen=True, slots=True)
class Run:
    """A greedy continuation.

    Attributes:
        tokens: what was chosen.
        logits: float32 [N, V], those of every choice.
        prefill_s: seconds for the prompt but its last token.
        decode_s: seconds for the rest.
    """

    tokens: list[int]
    logits: mx.array
    prefill_s: float
    decode_s: float


def check_parity() -> Finding:
    """Continue a prompt by both paths and by mlx-lm on a tiny random model."""
    prompt = [7 * index % 256 for index in range(33)]
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        path = write_sample(Path(folder), TINY)
        reference = _continue(_pomona(path, NumericPath.REFERENCE), prompt, PARITY_TOKENS)
        fast = _continue(_pomona(path, NumericPath.FAST), prompt, PARITY_TOKENS)
        peer = _continue(_mlx_lm(path), prompt, PARITY_TOKENS) if _has_mlx_lm() else None
    gap = _gap(reference, fast)
    found = f"fast path within {gap:.1e} of the reference path over {PARITY_TOKENS} tokens"
    if reference.tokens != fast.tokens or not gap < PATH_TOLERANCE:
        return Finding("fail", found, 'Serve with path = "reference", and please report this line.')
    if peer is None:
        return Finding("ok", f"{found}; mlx-lm is not installed, so not compared")
    if not mx.array_equal(reference.logits, peer.logits).item():
        return Finding(
            "warn", f"{found}; reference path {_gap(reference, peer):.1e} off mlx-lm", "Please report this line."
        )
    return Finding("ok", f"{found}; reference path bit-equal to mlx-lm")


def check_speed() -> Finding:
    """Time prefill and decode of a random model, and mlx-lm's on the same weights."""
    prompt = [7 * index % 256 for index in range(SPEED_PROMPT_TOKENS + 1)]
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        path = write_sample(Path(folder), SMALL)
        ours = _timed(_pomona(path, NumericPath.FAST), prompt)
        peer = _timed(_mlx_lm(path), prompt) if _has_mlx_lm() else None
    found = f"random 4-bit model: {ours}"
    return Finding("ok", f"{found}; mlx-lm {peer or 'is not installed'}")


def write_tiny(folder: str) -> None:
    """Write the tiny checkpoint into `folder`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_sample(Path(folder), TINY)


def _pomona(path: Path, numeric_path: NumericPath) -> Callable[[], Forward]:
    loaded = load(open_checkpoint(path), numeric_path, lambda _: None)
    return lambda: _slot_forward(loaded)


def _slot_forward(loaded: LoadedModel) -> Forward:
    cache = loaded.make_cache(1)

    def forward(tokens: list[int]) -> mx.array:
        row = RowPlan(slot=0, token_ids=tuple(tokens), start=cache.length(0), logits_at=(len(tokens) - 1,))
        step = cache.begin(StepPlan((row,)))
        hidden = loaded.model.hidden(step)
        logits = loaded.model.head(step.select(hidden))[0, -1]
        cache.commit(0, len(tokens))
        return logits

    return forward


def _mlx_lm(path: Path) -> Callable[[], Forward]:
    utils: Any = importlib.import_module("mlx_lm.utils")
    caches: Any = importlib.import_module("mlx_lm.models.cache")
    model: Any = utils.load_model(path)[0]
    if mx.default_device() == mx.Device(mx.cpu):
        model.set_dtype(mx.float32)

    def begin() -> Forward:
        cache = caches.make_prompt_cache(model)
        return lambda tokens: model(mx.array([tokens]), cache=cache)[0, -1]

    return begin


def _has_mlx_lm() -> bool:
    return importlib.util.find_spec("mlx_lm") is not None


def _continue(begin: Callable[[], Forward], prompt: list[int], num_tokens: int) -> Run:
    """Take the likeliest token again and again: the prompt but its last token first, then one token a step."""
    forward = begin()
    started = time.perf_counter()
    mx.eval(forward(prompt[:-1]))  # pyright: ignore[reportUnknownMemberType]
    prefilled = time.perf_counter()
    token, tokens, rows = prompt[-1], list[int](), list[mx.array]()
    for _ in range(num_tokens):
        logits = forward([token])
        token = cast("int", mx.argmax(logits).item())
        tokens.append(token)
        rows.append(logits.astype(mx.float32))
    ended = time.perf_counter()
    return Run(tokens, mx.stack(rows), prefilled - started, ended - prefilled)


def _gap(one: Run, other: Run) -> float:
    """Return the largest difference between the logits of two runs."""
    return cast("float", mx.abs(one.logits - other.logits).max().item())


def _timed(begin: Callable[[], Forward], prompt: list[int]) -> str:
    _continue(begin, prompt[:WARMUP_TOKENS], 2)  # the first run allocates and compiles
    run = _continue(begin, prompt, SPEED_TOKENS)
    prefill, decode = (len(prompt) - 1) / run.prefill_s, SPEED_TOKENS / run.decode_s
    return f"prefill {prefill:.0f}, decode {decode:.0f} tokens/s"
