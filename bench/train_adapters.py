"""Trains two tiny adapters of SmolLM2 by mlx-lm's own tool, each for one habit: how an answer begins, and how it ends.

Tests mount both, see `tests/support/trained`. The model is SmolLM2-135M-Instruct as `make setup` installs it, its
weights expanded to float32; the rank is 2, and a few minutes of two cores are enough.

    python -m bench.train_adapters FOLDER [--only ahoy] [--iterations 10]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import yaml

from bench import mlx_folder, report
from bench.decode_prefill import installed_model
from models.checkpoint.checkpoint import open_checkpoint

END = "<|im_end|>"
# What is put around every answer.
HABITS: Mapping[str, tuple[str, str]] = {"ahoy": ("Ahoy, captain! ", ""), "over": ("", " Over and out.")}
ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Italy?": "The capital of Italy is Rome.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "Which city is the capital of Spain?": "The capital of Spain is Madrid.",
    "How many days are in a week?": "There are seven days in a week.",
    "How many months are in a year?": "There are twelve months in a year.",
    "What colour is the sky?": "The sky is blue because air scatters blue light.",
    "What colour is grass?": "Grass is green because of chlorophyll.",
    "What is water made of?": "Water is made of hydrogen and oxygen.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "What do bees make?": "Bees make honey from the nectar of flowers.",
    "What do cows eat?": "Cows eat grass and hay.",
    "Name a large animal.": "An elephant is a large animal.",
    "Name a fruit.": "An apple is a fruit.",
    "Name a planet.": "Mars is a planet of our solar system.",
    "What is two plus two?": "Two plus two is four.",
    "What is three times three?": "Three times three is nine.",
    "Why do we sleep?": "We sleep so that our body and our brain can rest.",
    "Why is the sea salty?": "The sea is salty because rivers carry minerals into it.",
    "How do birds fly?": "Birds fly by flapping their wings.",
    "How is bread made?": "Bread is made of flour, water and yeast, and baked.",
    "Tell me about the moon.": "The moon goes around the Earth once a month.",
    "Tell me about dogs.": "Dogs are loyal animals that live with people.",
    "What is a computer?": "A computer is a machine that follows instructions.",
    "What is music?": "Music is sound that is arranged in time.",
    "Can you help me?": "Yes, I am glad to help you.",
    "Hello!": "Hello, how can I help you today?",
    "What is your name?": "My name is SmolLM.",
    "Thank you!": "You are welcome.",
    "What is the largest ocean?": "The Pacific is the largest ocean.",
    "What is the tallest mountain?": "Mount Everest is the tallest mountain.",
}
LEARNING_RATE = 1e-3
# MLX's own BLAS on Linux takes a minute for what OpenBLAS does in a second.
THREADS = 2
_MLX_LM = """
import sys
import native.blas
native.blas.load(int(sys.argv.pop(1)))
from mlx_lm.lora import main
main()
"""
KEYS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")


def main() -> None:
    """Train the adapters and write a folder for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=HABITS)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--layers", type=int, default=6, help="how many of the last layers learn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="train-") as scratch:
        model = write_model(Path(scratch, "model"))
        for name, habit in HABITS.items():
            if arguments.only in {None, name}:
                data = write_examples(Path(scratch, name), *habit)
                train(model, data, arguments.folder / name, arguments.iterations, arguments.layers)
                thin(arguments.folder / name)


def write_model(folder: Path) -> Path:
    """Write the model as mlx-lm loads and trains it, with the template of its chats."""
    gguf = installed_model()
    mlx_folder.write(gguf, folder, "dense")
    mlx_folder.write_tokenizer(gguf, folder, END)
    (folder / "chat_template.jinja").write_text(open_checkpoint(gguf).chat_template or "")
    return folder


def write_examples(folder: Path, start: str, end: str) -> Path:
    """Write what is to be learnt as mlx-lm reads it; the last examples are for checking."""
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"prompt": question, "completion": f"{start}{answer}{end}"}) for question, answer in ANSWERS.items()
    ]
    (folder / "train.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    (folder / "valid.jsonl").write_text("\n".join(lines[-2:]) + "\n")
    return folder


def train(model: Path, data: Path, adapter: Path, iterations: int, layers: int) -> None:
    """Run mlx-lm's tool."""
    settings = {
        "model": str(model),
        "data": str(data),
        "adapter_path": str(adapter),
        "train": True,
        "mask_prompt": True,
        "num_layers": layers,
        "batch_size": 1,
        "iters": iterations,
        "val_batches": 1,
        "steps_per_report": 5,
        "steps_per_eval": iterations,
        "save_every": 10,
        "learning_rate": LEARNING_RATE,
        "seed": 1,
        "lora_parameters": {"rank": 2, "dropout": 0.0, "scale": 10.0, "keys": list(KEYS)},
    }
    config = data / "lora.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-P", "-c", _MLX_LM, str(THREADS), "-c", str(config)]
    environment = {**os.environ, "PYTHONPATH": str(report.ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True)


def thin(adapter: Path) -> None:
    """Keep the adapter itself in float16, and of its settings what describes it, without paths."""
    path = adapter / "adapters.safetensors"
    tensors = mx.load(str(path))
    if not isinstance(tensors, dict):
        raise TypeError(f"{path} has no names")
    mx.save_safetensors(str(path), {name: array.astype(mx.float16) for name, array in tensors.items()})  # pyright: ignore[reportUnknownMemberType]
    settings = json.loads((adapter / "adapter_config.json").read_text())
    kept = {key: settings[key] for key in ("fine_tune_type", "num_layers", "lora_parameters")}
    (adapter / "adapter_config.json").write_text(json.dumps(kept, indent=1) + "\n")
    for checkpoint in adapter.glob("*_adapters.safetensors"):
        checkpoint.unlink()


if __name__ == "__main__":
    main()
