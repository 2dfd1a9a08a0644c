"""Cold start: from starting a process to the first token of SmolLM2's answer to a prompt of 128 tokens.

For Pomona the process is `pomona serve`, which starts a worker at the first request, and the token comes through the
gateway; tokenizer and all are loaded. The peers are a Python process each, without a server: llama.cpp through
`llama_cpp`, and mlx-lm, which is given token ids and loads no tokenizer, in its favour. Rounds alternate.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import mlx.core as mx
from pomona.v1 import generation_pb2, generation_pb2_grpc

from bench import report
from gateway.cli.demo import demo_checkpoint
from models.checkpoint.checkpoint import Checkpoint, open_checkpoint
from models.checkpoint.weights import Weights

MODEL = "smollm2"
SENTENCE = "The river runs past the old mill, and every morning the miller counts the boats that come down with grain."
PROMPT = " ".join([SENTENCE] * 5) + " Then he walks home and reads by the fire, in peace."
PROMPT_TOKENS = 128
CHILD_TIMEOUT_S = 180.0
GREETING = "listening on "

LLAMA_CPP = """
import sys, time
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=2048, verbose=False)
tokens = model.tokenize(sys.argv[2].encode(), add_bos=False)
for _ in model.generate(tokens, temp=0.0):
    print(time.monotonic(), len(tokens), flush=True)
    break
"""
MLX_LM = """
import json, sys, time
import mlx.core as mx
from pathlib import Path
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model
model, _ = load_model(Path(sys.argv[1]))
tokens = json.loads(sys.argv[2])
for token, _ in generate_step(mx.array(tokens), model, max_tokens=1):
    print(time.monotonic(), len(tokens), flush=True)
    break
"""


def main() -> None:
    """Measure every candidate, print a line for each, and write `bench/results/cold_start.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each candidate")
    rounds = parser.parse_args().rounds
    print(report.heading("Cold start to the first token of a 128-token prompt, SmolLM2-135M-Instruct Q4_1"))
    path = demo_checkpoint()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        candidates = _candidates(path, Path(folder))
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, measure in candidates.items():
                samples[name].append(measure())
    results = {name: _digest(collected) for name, collected in samples.items()}
    for name, digest in results.items():
        for part, spread in digest.items():
            print(f"  {name:10} {part:14} {report.spread(spread, 's')}")
    written = report.write(
        "cold_start", {"benchmark": "cold_start", "prompt_tokens": PROMPT_TOKENS, "results": results}
    )
    print("written:", written.relative_to(report.ROOT))


def _candidates(path: Path, folder: Path) -> dict[str, Callable[[], dict[str, float]]]:
    """Return what to measure: always Pomona, and the peers that are installed."""
    checkpoint = open_checkpoint(path)
    found: dict[str, Callable[[], dict[str, float]]] = {"pomona": lambda: measure_pomona(path)}
    if importlib.util.find_spec("llama_cpp"):
        found["llama.cpp"] = lambda: measure_peer(LLAMA_CPP, str(path), PROMPT)
    if importlib.util.find_spec("mlx_lm"):
        exported = export(checkpoint, folder)
        ids = json.dumps(checkpoint.tokenizer().encode(PROMPT, add_special_tokens=False))
        found["mlx-lm"] = lambda: measure_peer(MLX_LM, str(exported), ids)
    return found


def measure_pomona(path: Path) -> dict[str, float]:
    """Start a server and ask it at once.

    Returns:
        Seconds from the start of the process: `listening`, `first_token`.
    """
    begin = time.monotonic()
    with _server(path) as address:
        listening = time.monotonic()
        with grpc.insecure_channel(address) as channel:
            first = _first_token(generation_pb2_grpc.GenerationServiceStub(channel))
    return {"listening": listening - begin, "first_token": first - begin}


def measure_peer(program: str, *arguments: str) -> dict[str, float]:
    """Run a Python program that prints the monotonic time of its first token and the tokens of its prompt."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    at, tokens = done.stdout.split()
    if int(tokens) != PROMPT_TOKENS:
        raise SystemExit(f"the peer's prompt has {tokens} tokens, not {PROMPT_TOKENS}")
    return {"first_token": float(at) - begin}


def export(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a GGUF checkpoint as mlx-lm reads it: weights packed as they are, scales in float32.

    With the float16 scales of the file a CPU takes minutes for the prompt.
    """
    weights = Weights(checkpoint, mx.float32)
    tensors = {name: weights.take(name, info.shape) for name, info in checkpoint.tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})  # pyright: ignore[reportUnknownMemberType]
    config: dict[str, Any] = {key: value for key, value in checkpoint.config.items() if value is not None}
    scheme = checkpoint.quantization
    if scheme is not None and scheme.default is not None:
        packed: dict[str, Any] = {"bits": scheme.default.bits, "group_size": scheme.default.group_size}
        for module, layer in scheme.per_layer.items():
            packed[module] = False if layer is None else {"bits": layer.bits, "group_size": layer.group_size}
        config["quantization"] = packed
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def _server(path: Path) -> Generator[str]:
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--log-level", "error"]
    command += ["--model", f"{MODEL}={path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise SystemExit("the server has no standard output")
        try:
            yield process.stdout.readline().removeprefix(GREETING).strip()
        finally:
            process.terminate()
            process.wait(CHILD_TIMEOUT_S)


def _first_token(stub: generation_pb2_grpc.GenerationServiceStub) -> float:
    request = generation_pb2.StreamGenerateRequest(model=MODEL)
    request.spec.prompt = PROMPT
    request.spec.sampling.temperature = 0
    request.spec.stopping.max_tokens = 1
    for event in stub.StreamGenerate(request, timeout=CHILD_TIMEOUT_S):
        if event.HasField("started") and event.started.prompt_tokens != PROMPT_TOKENS:
            raise SystemExit(f"the prompt has {event.started.prompt_tokens} tokens, not {PROMPT_TOKENS}")
        if event.HasField("delta"):
            return time.monotonic()
    raise SystemExit("the answer has no token")


def _digest(samples: list[dict[str, float]]) -> dict[str, dict[str, float | int]]:
    return {part: report.summary([sample[part] for sample in samples]) for part in samples[0]}


if __name__ == "__main__":
    main()
