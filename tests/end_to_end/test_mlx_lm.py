"""Through the gateway: architectures that are mlx-lm's to compute, where that is allowed, and nowhere else."""

from pathlib import Path

import grpc
import pytest
from pomona.v1 import common_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc
from pomona.v1 import generation_pb2 as pb

from models.borrowed.checkpoint import open_any
from tests.models.borrowed.tiny import write_borrowed
from tests.support.served import served
from tests.support.tiny_models import END_TOKEN_ID

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PROMPT = [40, 71, 9, 120, 33, 34, 35, 7, 88, 201]
NUM_TOKENS = 24
LIMIT_S = 50.0
ARCHITECTURES = ("olmo2", "starcoder2")


def spec() -> pb.GenerationSpec:
    return pb.GenerationSpec(
        token_ids=common_pb2.TokenIds(ids=PROMPT),
        sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StoppingParams(max_tokens=NUM_TOKENS),
    )


def their_text(folder: Path) -> str:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    tokens = [token for token, _ in greedy_logits(folder, PROMPT, NUM_TOKENS)]
    kept = tokens[: tokens.index(END_TOKEN_ID)] if END_TOKEN_ID in tokens else tokens
    tokenizer = open_any(folder, allow_mlx_lm=True).tokenizer()
    return b"".join(tokenizer.token_bytes(token) for token in kept).decode("utf-8", "replace")


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {name: write_borrowed(tmp_path / name, name) for name in ARCHITECTURES}


def flags(folders: dict[str, Path]) -> list[str]:
    return [flag for name, folder in folders.items() for flag in ("--model", f"{name}={folder}")]


@pytest.mark.slow
def test_text_is_that_of_mlx_lm_s_own_generation(folders: dict[str, Path]) -> None:
    with served(*flags(folders), "--allow-mlx-lm") as server, grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        models = model_pb2_grpc.ModelServiceStub(channel)
        for name, folder in folders.items():
            whole = stub.Generate(pb.GenerateRequest(model=name, spec=spec()), timeout=LIMIT_S)
            stream = stub.StreamGenerate(pb.StreamGenerateRequest(model=name, spec=spec()), timeout=LIMIT_S)
            expected = their_text(folder)
            assert expected
            assert (whole.sequences[0].text, "".join(each.delta.text for each in stream)) == (expected, expected)
            told = models.GetModel(model_pb2.GetModelRequest(model=name), timeout=LIMIT_S).model
            assert (told.architecture, told.runtime.implementation) == (name, "mlx-lm")


def test_without_the_setting_it_is_refused_by_name(folders: dict[str, Path]) -> None:
    with served(*flags(folders)) as server, grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(pb.GenerateRequest(model="olmo2", spec=spec()), timeout=LIMIT_S)
        details = str(caught.value.details())  # pyright: ignore[reportAttributeAccessIssue]
        assert "the architecture olmo2 is not one of llama" in details
        assert "allow_mlx_lm" in details
