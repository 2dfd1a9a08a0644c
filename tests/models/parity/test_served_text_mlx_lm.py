"""What a client of the gateway reads, whole or streamed, is the text that mlx-lm makes of the same weights."""

from pathlib import Path

import grpc
import pytest
from pomona.v1 import generation_pb2 as pb
from pomona.v1 import generation_pb2_grpc

from bench import mlx_folder
from tests.models.parity.equality import load_path
from tests.support.served import served
from tests.support.smollm2 import smollm2_path

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(240),  # MLX's own product on the reference path, and mlx-lm beside it
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
NUM_TOKENS = 64
LIMIT_S = 120.0


def spec() -> pb.GenerationSpec:
    return pb.GenerationSpec(
        prompt=PROMPT,
        sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StoppingParams(max_tokens=NUM_TOKENS),
    )


def texts(address: str, model: str) -> tuple[str, str]:
    """Return the unary text and the joined stream."""
    with grpc.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        whole = stub.Generate(pb.GenerateRequest(model=model, spec=spec()), timeout=LIMIT_S)
        stream = stub.StreamGenerate(pb.StreamGenerateRequest(model=model, spec=spec()), timeout=LIMIT_S)
        return whole.sequences[0].text, "".join(response.delta.text for response in stream)


def test_unary_text_joined_stream_and_mlx_lm_are_the_same(tmp_path: Path) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_text

    models = "".join(
        f'[[models]]\nname = "{path}"\ncheckpoint = "{smollm2_path()}"\npath = "{path}"\n'
        for path in ("fast", "reference")
    )
    settings = tmp_path / "pomona.toml"
    settings.write_text(models)
    with served("--settings", str(settings)) as server:
        fast, reference = texts(server.address, "fast"), texts(server.address, "reference")
    folder = mlx_folder.write(smollm2_path(), tmp_path, "float32")
    text, _ = greedy_text(folder, load_path(smollm2_path()).tokenizer, PROMPT, NUM_TOKENS)
    assert text
    assert (*reference, *fast) == (text,) * 4
