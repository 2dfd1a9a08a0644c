"""Requests in one line, and what reading them makes."""

from typing import Any

from pomona.v1 import generation_pb2 as pb

from worker.validation import Count, Generation, ModelFacts, read_count, read_generation

MODEL = ModelFacts(vocab_size=100, max_context_tokens=50)
KINDS: tuple[type[Any], ...] = (pb.GenerateRequest, pb.StreamGenerateRequest, pb.CountTokensRequest)


def base(kind: type[Any], **fields: Any) -> Any:
    message = kind(model="m", request_id="r", **fields)
    if kind is pb.CountTokensRequest and message.WhichOneof("input") is None:
        message.prompt = "hello"
    if kind is not pb.CountTokensRequest and message.spec.WhichOneof("input") is None:
        message.spec.prompt = "hello"
    return message


def read(message: Any) -> Generation | Count:
    if isinstance(message, pb.CountTokensRequest):
        return read_count(message.SerializeToString())
    return read_generation(message.SerializeToString(), type(message), MODEL)


def generation(spec: pb.GenerationSpec) -> Generation:
    read_in = read(base(pb.GenerateRequest, spec=spec))
    assert isinstance(read_in, Generation)
    return read_in
