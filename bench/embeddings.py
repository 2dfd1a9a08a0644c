"""Vectors a second through the gateway: one input a call, the same inputs in one batch, and single calls at once.

The model is a random one of Qwen3-Embedding-0.6B's shape, packed in 4 bits, but for a small vocabulary, of which
vectors need no more than a look-up; inputs are random tokens. All three ways compute the same inputs, and their vectors
are compared: they must be equal to the last bit.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import mlx.core as mx
from pomona.v1 import common_pb2, embedding_pb2, embedding_pb2_grpc

from bench import report
from bench.load import servers
from tests.support.tiny_embedders import add_ends, write_pooling
from tests.support.tiny_families import Tiny, family_config, tensor_shapes
from tests.support.tiny_models import END_TOKEN_ID, packed, write_tensors, write_tokenizer

LIMIT_S = 600.0
QUANTIZATION = {"group_size": 64, "bits": 4}
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
# Tokens of the shortest and the longest input.
LENGTHS = {"words": (2, 6), "queries": (8, 32), "paragraphs": (100, 200), "mixed": (8, 400)}

Vectors = list[bytes]
Way = Callable[[embedding_pb2_grpc.EmbeddingServiceStub, list[list[int]]], Vectors]


def main() -> None:
    """Measure, print, and write `bench/results/embeddings.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28, help="of the model")
    parser.add_argument("--inputs", type=int, default=64, help="of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each way")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="that compute")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    arguments = parser.parse_args()
    title = f"Vectors: Qwen3-Embedding-0.6B's shape, {arguments.layers} layers, 4-bit, {arguments.inputs} inputs"
    print(report.heading(title), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        checkpoint = write_checkpoint(Path(folder) / "model", arguments.layers)
        with servers.pomona(checkpoint, arguments.threads, 16, {}) as target:
            results = measure_all(target["address"], arguments.inputs, arguments.rounds)
    show(results)
    if arguments.dry_run:
        print("nothing is written")
        return
    load = {name: getattr(arguments, name) for name in ("layers", "inputs", "rounds", "threads")}
    path = report.write("embeddings", {"benchmark": "embeddings", "load": load, "tokens_per_second": results})
    print("written:", path.relative_to(report.ROOT))


def write_checkpoint(folder: Path, num_layers: int) -> Path:
    """Write a random model of that shape and return its folder."""
    folder.mkdir()
    config = family_config(Tiny("qwen3", {**SHAPE, "num_hidden_layers": num_layers}))
    tensors: dict[str, mx.array] = {}
    for name, shape in tensor_shapes(config):
        made = mx.random.normal(shape) * shape[-1] ** -0.5 if len(shape) > 1 else mx.ones(shape)
        tensors |= {
            part: array.astype(mx.float16) if array.dtype == mx.float32 else array
            for part, array in packed(name, made, QUANTIZATION).items()
        }
        mx.eval(tensors)
    write_tensors(folder, tensors)
    (folder / "config.json").write_text(json.dumps({**config, "quantization": QUANTIZATION}))
    write_tokenizer(folder)
    add_ends(folder, tail=("<|end|>",))
    write_pooling(folder)
    return folder


def measure_all(address: str, num_inputs: int, num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return tokens a second of every way, by kind of input."""
    ways: dict[str, Way] = {"one by one": one_by_one, "in one batch": in_one_batch, "16 calls at once": at_once}
    results: dict[str, dict[str, Any]] = {}
    with grpc.insecure_channel(address) as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        for kind, (shortest, longest) in LENGTHS.items():
            chance = random.Random(kind)
            lengths = [chance.randint(shortest, longest) for _ in range(num_inputs)]
            inputs = [[*chance.choices(range(256), k=length - 1), END_TOKEN_ID] for length in lengths]
            expected = in_one_batch(stub, inputs)
            samples: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(num_rounds):
                for name, way in ways.items():
                    samples[name].append(sum(lengths) / seconds_of(way, stub, inputs, expected))
            mean = statistics.mean(lengths)
            results[kind] = {name: {**report.summary(each), "tokens_an_input": mean} for name, each in samples.items()}
    return results


def seconds_of(
    way: Way, stub: embedding_pb2_grpc.EmbeddingServiceStub, inputs: list[list[int]], expected: Vectors
) -> float:
    """Return how long a way takes; its vectors must be those that are expected."""
    began = time.perf_counter()
    vectors = way(stub, inputs)
    seconds = time.perf_counter() - began
    if vectors != expected:
        raise SystemExit("the vectors of a batch are not those of single calls")
    return seconds


def one_by_one(stub: embedding_pb2_grpc.EmbeddingServiceStub, inputs: list[list[int]]) -> Vectors:
    """Send each input when the one before is answered."""
    return [vector for each in inputs for vector in in_one_batch(stub, [each])]


def in_one_batch(stub: embedding_pb2_grpc.EmbeddingServiceStub, inputs: list[list[int]]) -> Vectors:
    """Send all inputs in one call."""
    made = [embedding_pb2.EmbedInput(token_ids=common_pb2.TokenIds(ids=each)) for each in inputs]
    response = stub.Embed(embedding_pb2.EmbedRequest(model=servers.MODEL, inputs=made), timeout=LIMIT_S)
    return [each.values for each in response.embeddings]


def at_once(stub: embedding_pb2_grpc.EmbeddingServiceStub, inputs: list[list[int]]) -> Vectors:
    """Send each input by itself, 16 at a time."""
    with ThreadPoolExecutor(16) as pool:
        return [vector for vectors in pool.map(lambda each: in_one_batch(stub, [each]), inputs) for vector in vectors]


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print rates, and how much faster than one by one: by medians, and by the runs that other work disturbed least."""
    for kind, ways in results.items():
        alone = ways["one by one"]
        print(f"\n{kind}, {alone['tokens_an_input']:.0f} tokens an input")
        for name, rate in ways.items():
            inputs_per_second = rate["median"] / rate["tokens_an_input"]
            factor, factor_of_best = (rate[which] / alone[which] for which in ("median", "max"))
            print(f"  {name:18} {report.spread(rate, 'tokens/s')} {inputs_per_second:9.1f} inputs/s", end=" ")
            print(f"{factor:6.2f} x, {factor_of_best:.2f} x by best runs")


if __name__ == "__main__":
    main()
