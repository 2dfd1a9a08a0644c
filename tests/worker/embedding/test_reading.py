"""Every field of a request changes what is asked for, or is refused by its name."""

from typing import Any

import pytest
from pomona.v1 import common_pb2
from pomona.v1 import embedding_pb2 as pb

from models.checkpoint.pooling import PoolingMode
from models.embedding.embedder import Embedder, Sizes
from models.embedding.prompts import Prompts
from tests.worker.fields import field_paths, named, set_field
from worker.embedding.reading import EmbedAsk, RerankAsk, read_embed, read_rerank
from worker.errors import FieldError, InvalidField, MalformedRequest, UnsupportedOption

PROMPTS = Prompts.of({"query": "Instruct: x\nQuery:", "document": "d: ", "clustering": "c: "}, "x: ")
EMBEDDER = Embedder(PoolingMode.MEAN, False, PROMPTS, Sizes(8, (2, 3)), None, "r")
BASES: dict[str, Any] = {
    "EmbedRequest": pb.EmbedRequest(model="m", request_id="r", inputs=[pb.EmbedInput(text="hello")]),
    "RerankRequest": pb.RerankRequest(model="m", request_id="r", query="q", documents=["d"]),
}
# A message without a field says nothing.
FIELDS = [
    (kind, path)
    for kind, base in BASES.items()
    for path in field_paths(base.DESCRIPTOR)
    if path[-1].message_type is None or path[-1].is_repeated
]


def read(message: Any) -> EmbedAsk | RerankAsk:
    body = message.SerializeToString()
    return read_embed(body, EMBEDDER, 4, 10) if isinstance(message, pb.EmbedRequest) else read_rerank(body, 4)


@pytest.mark.parametrize(("kind", "path"), FIELDS, ids=lambda value: value if isinstance(value, str) else named(value))
def test_every_field_changes_something_or_is_refused_by_name(kind: str, path: Any) -> None:
    message = type(BASES[kind])()
    message.CopyFrom(BASES[kind])
    set_field(message, path)
    outcome = outcome_of(message)
    if isinstance(outcome, str):
        assert named(path).startswith(outcome.partition("[")[0])
    else:
        assert outcome != read(BASES[kind])


def outcome_of(message: Any) -> EmbedAsk | RerankAsk | str:
    """Return what a request asks for, or the field for which it is refused."""
    try:
        return read(message)
    except FieldError as error:
        return error.field


def test_unknown_fields_and_values_are_refused() -> None:
    body = BASES["EmbedRequest"].SerializeToString()
    for more in (b"\xa0\x06\x01", b"\x32\x03\xa0\x06\x01", b"\x32\x02\x08\x63"):
        with pytest.raises(UnsupportedOption):
            read_embed(body + more, EMBEDDER, 4, 10)
    with pytest.raises(MalformedRequest):
        read_rerank(b"\xff", 4)


def test_two_members_of_one_input_are_refused() -> None:
    both = (
        pb.EmbedInput(text="x").SerializeToString()
        + pb.EmbedInput(token_ids=common_pb2.TokenIds(ids=[1])).SerializeToString()
    )
    body = pb.EmbedRequest(model="m", request_id="r").SerializeToString() + b"\x2a" + bytes([len(both)]) + both
    with pytest.raises(InvalidField, match=r"inputs\[0\]"):
        read_embed(body, EMBEDDER, 4, 10)


@pytest.mark.parametrize(
    ("dimensions", "error"), [(1, UnsupportedOption), (4, UnsupportedOption), (9, InvalidField), (0, InvalidField)]
)
def test_sizes_that_the_model_does_not_say_are_refused(dimensions: int, error: type[Exception]) -> None:
    message = pb.EmbedRequest(model="m", request_id="r", inputs=[pb.EmbedInput(text="x")])
    message.options.dimensions = dimensions
    with pytest.raises(error, match=r"options\.dimensions"):
        read(message)


def test_a_model_without_a_place_for_instructions_takes_none() -> None:
    embedder = Embedder(PoolingMode.LAST, True, Prompts.of({"query": "query: "}), Sizes(8), None, "r")
    message = pb.EmbedRequest(model="m", request_id="r", inputs=[pb.EmbedInput(text="x")])
    message.options.instruction = "y"
    with pytest.raises(UnsupportedOption, match=r"options\.instruction"):
        read_embed(message.SerializeToString(), embedder, 4, 10)


def test_the_default_prompt_stands_before_texts_alone() -> None:
    message = pb.EmbedRequest(model="m", request_id="r", inputs=[pb.EmbedInput(token_ids=common_pb2.TokenIds(ids=[1]))])
    ask = read(message)
    assert isinstance(ask, EmbedAsk)
    assert ask.prompt == "x: "
    message.options.task_type = pb.TASK_TYPE_CLUSTERING
    with pytest.raises(InvalidField, match=r"options\.task_type"):
        read(message)
