"""Writes small folders of random experts in each layout: for packs, which need no more of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.checkpoint.checkpoint import Checkpoint, Limits
from models.checkpoint.folder import INDEX_FILE, read_folder_tensors
from models.checkpoint.tokenizer import Tokenizer
from models.experts.pack import Pack
from models.experts.pack_builder import PackPlan, build_pack, plan_pack

LAYERS, EXPERTS, WIDTH, INNER = 2, 3, 8, 5
KINDS = ("gate_proj", "up_proj", "down_proj")
Arrays = dict[str, np.ndarray]


def write_experts(folder: Path, *, files: int = 2, seed: int = 0) -> Path:
    """Write packed experts as MLX stacks them, and what else a checkpoint has, over several files."""
    return write(folder, stacked(seed), files=files)


def stacked(seed: int = 0) -> Arrays:
    """Return experts as MLX stacks them, packed, and a norm."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {"model.norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        for kind in KINDS:
            module = f"model.layers.{layer}.mlp.switch_mlp.{kind}"
            arrays[f"{module}.weight"] = rng.integers(0, 1 << 32, (EXPERTS, INNER, WIDTH), dtype=np.uint32)
            for part in ("scales", "biases"):
                arrays[f"{module}.{part}"] = rng.standard_normal((EXPERTS, INNER, 1)).astype(np.float16)
    return arrays


def plain(layer: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the stacks [X, I, E] or [X, E, I] of plain weights of one layer, by kind."""
    rng = np.random.default_rng((seed, layer))
    shapes = {kind: (WIDTH, INNER) if kind == "down_proj" else (INNER, WIDTH) for kind in KINDS}
    return {kind: rng.standard_normal((EXPERTS, *shape)).astype(np.float32) for kind, shape in shapes.items()}


def write(folder: Path, arrays: Mapping[str, np.ndarray], *, files: int = 1) -> Path:
    """Write tensors over so many files, with an index where they are several."""
    folder.mkdir(exist_ok=True)
    names = [f"model-{index}.safetensors" for index in range(files)] if files > 1 else ["model.safetensors"]
    placed = {name: names[index % files] for index, name in enumerate(arrays)}
    for file in names:
        save_file({name: arrays[name] for name in arrays if placed[name] == file}, folder / file)
    if files > 1:
        (folder / INDEX_FILE).write_text(json.dumps({"weight_map": placed}))
    return folder


def plan_of(folder: Path) -> PackPlan:
    """Return what would be packed of a folder."""
    return plan_pack(folder, read_folder_tensors(folder)[0])


def checkpoint_of(folder: Path) -> Checkpoint:
    """Return the tensors of a folder as a checkpoint that says nothing else."""
    tensors, _ = read_folder_tensors(folder)
    return Checkpoint(folder.name, "safetensors", {}, {}, None, tensors, None, "", Limits(None), _no_tokenizer)


def _no_tokenizer() -> Tokenizer:
    raise NotImplementedError


def packed(folder: Path) -> Pack:
    """Pack a folder."""
    return build_pack(plan_of(folder), ignore_phase).pack


def ignore_phase(phase: str, done: int, total: int) -> None:
    """Take a report and do nothing."""


def values(pack: Pack, name: str) -> bytes:
    """Return the bytes that a pack has of a tensor."""
    entry = pack.entries[name]
    return pack.file.read_bytes()[entry.offset : entry.offset + entry.nbytes]
