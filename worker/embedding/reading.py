"""Turns requests for vectors and rankings into plain types: every field is honoured, or refused by its name."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pomona.v1 import embedding_pb2 as pb

from models.embedding.embedder import Embedder
from models.embedding.framing import Cut
from models.embedding.prompts import Prompts, Task
from models.embedding.vectors import VectorForm
from worker import wire
from worker.embedding.request import VectorWish
from worker.envelope import Envelope, read_envelope
from worker.errors import ContextTooLong, InvalidField, UnsupportedOption

MAX_INSTRUCTION_BYTES = 16 << 10
MAX_INPUT_IDS = 1 << 20  # of one input, some of which may be left out
_CUTS: Mapping[int, Cut] = {
    pb.TRUNCATION_UNSPECIFIED: Cut.NONE,
    pb.TRUNCATION_ERROR: Cut.NONE,
    pb.TRUNCATION_RIGHT: Cut.END,
    pb.TRUNCATION_LEFT: Cut.BEGINNING,
}
_TASKS: Mapping[int, Task] = {
    pb.TASK_TYPE_RETRIEVAL_QUERY: Task.QUERY,
    pb.TASK_TYPE_RETRIEVAL_DOCUMENT: Task.DOCUMENT,
    pb.TASK_TYPE_SEMANTIC_SIMILARITY: Task.SIMILARITY,
    pb.TASK_TYPE_CLASSIFICATION: Task.CLASSIFICATION,
    pb.TASK_TYPE_CLUSTERING: Task.CLUSTERING,
}
_DTYPES: Mapping[int, Literal["<f4", "<f2"]] = {
    pb.VECTOR_TYPE_UNSPECIFIED: "<f4",
    pb.VECTOR_TYPE_FLOAT32_LE: "<f4",
    pb.VECTOR_TYPE_FLOAT16_LE: "<f2",
}


@dataclass(frozen=True, slots=True)
class EmbedAsk:
    """A checked request for vectors.

    Attributes:
        inputs: texts, or the tokens of one.
        prompt: what stands before each text; empty: nothing.
        cut: what of a long input may be left out.
        wish: what is wanted of each.
    """

    envelope: Envelope
    inputs: tuple[str | array[int], ...]
    prompt: str
    cut: Cut
    wish: VectorWish


@dataclass(frozen=True, slots=True)
class RerankAsk:
    """A checked request for a ranking.

    Attributes:
        top_n: how many documents to tell of; 0: all.
        cut: what of a long document may be left out.
        instruction: what makes a document fit; empty: the model's own.
    """

    envelope: Envelope
    query: str
    documents: tuple[str, ...]
    top_n: int
    cut: Cut
    instruction: str


def read_embed(body: bytes, embedder: Embedder, max_inputs: int, max_tokens: int) -> EmbedAsk:
    """Read a request for vectors.

    Args:
        body: as it came.
        embedder: how the model makes them.
        max_inputs: of one request.
        max_tokens: of one input.

    Raises:
        MalformedRequest: it is no such message.
        ContextTooLong: an input in tokens is too long.
        InvalidField, UnsupportedOption: naming the field.
    """
    message = wire.parse(body, pb.EmbedRequest)
    _refuse_adapters(message)
    envelope, options = read_envelope(message), message.options
    _check_count(message.inputs, "inputs", max_inputs)
    wish = _read_wish(options, embedder)
    prompt = _read_prompt(options, embedder.prompts)
    cut = _CUTS[options.truncation]
    most = max_tokens if cut is Cut.NONE else None
    inputs = tuple(_read_input(each, f"inputs[{index}]", most) for index, each in enumerate(message.inputs))
    _check_prompt(options, prompt, inputs)
    return EmbedAsk(envelope, inputs, prompt, cut, wish)


def read_rerank(body: bytes, max_documents: int) -> RerankAsk:
    """Read a request for a ranking.

    Args:
        body: as it came.
        max_documents: of one request.

    Raises:
        MalformedRequest: it is no such message.
        InvalidField, UnsupportedOption: naming the field.
    """
    message = wire.parse(body, pb.RerankRequest)
    _refuse_adapters(message)
    envelope = read_envelope(message)
    if not message.query:
        raise InvalidField("query", "is empty")
    _check_count(message.documents, "documents", max_documents)
    _check_instruction(message.instruction, "instruction")
    documents = tuple(message.documents)
    return RerankAsk(envelope, message.query, documents, message.top_n, _CUTS[message.truncation], message.instruction)


def _refuse_adapters(message: pb.EmbedRequest | pb.RerankRequest) -> None:
    if message.adapters:
        raise UnsupportedOption("adapters")


def _check_count(elements: Sequence[object], path: str, most: int) -> None:
    if not 1 <= len(elements) <= most:
        raise InvalidField(path, f"from 1 to {most}, and there are {len(elements)}")


def _check_instruction(instruction: str, path: str) -> None:
    if len(instruction.encode()) > MAX_INSTRUCTION_BYTES:
        raise InvalidField(path, f"at most {MAX_INSTRUCTION_BYTES} bytes")


def _read_wish(options: pb.EmbedOptions, embedder: Embedder) -> VectorWish:
    is_per_token = options.pooling == pb.POOLING_PER_TOKEN
    # What checkpoints say of length 1 is said of the one vector of a text.
    is_normalized = embedder.is_normalized and not is_per_token
    form = VectorForm(
        dimensions=_read_dimensions(options, embedder, is_per_token=is_per_token),
        is_normalized=options.normalize if options.HasField("normalize") else is_normalized,
        dtype=_DTYPES[options.vector_type],
    )
    return VectorWish(None if is_per_token else embedder.mode, form)


def _read_dimensions(options: pb.EmbedOptions, embedder: Embedder, *, is_per_token: bool) -> int:
    path, sizes = "options.dimensions", embedder.sizes
    if not options.HasField("dimensions"):
        return sizes.full
    dimensions = options.dimensions
    if not (sizes.least or 1) <= dimensions <= sizes.full:
        raise InvalidField(path, f"from {sizes.least or 1} to {sizes.full}")
    if not sizes.has(dimensions):
        known = ", ".join(map(str, (*sizes.listed, sizes.full)))
        raise UnsupportedOption(path, f"the model says of no other size than {known} that it has it")
    if is_per_token and dimensions < sizes.full:
        raise InvalidField(path, "vectors of single tokens are whole")
    return dimensions


def _read_prompt(options: pb.EmbedOptions, prompts: Prompts) -> str:
    task = _TASKS.get(options.task_type)
    if task is not None and task not in prompts.by_task:
        raise UnsupportedOption("options.task_type", "the model has no prompt for this task")
    if not options.instruction:
        return prompts.default if task is None else prompts.by_task[task]
    path = "options.instruction"
    _check_instruction(options.instruction, path)
    if prompts.frame is None:
        raise UnsupportedOption(path, "the model takes no instructions")
    if task not in {None, Task.QUERY}:
        raise InvalidField(path, "options.task_type has a prompt of its own: give one of the two")
    return prompts.instructed(options.instruction)


def _read_input(message: pb.EmbedInput, path: str, max_tokens: int | None) -> str | array[int]:
    match message.WhichOneof("input"):
        case "text":
            return message.text
        case "token_ids":
            return _read_ids(message.token_ids.ids, f"{path}.token_ids.ids", max_tokens)
        case _:
            raise InvalidField(path, "give text or token_ids")


def _read_ids(ids: Sequence[int], path: str, max_tokens: int | None) -> array[int]:
    """Copy token ids, `max_tokens` of them at most where nothing may be left out."""
    if max_tokens is not None and len(ids) > max_tokens:
        raise ContextTooLong(len(ids), max_tokens, path, has_output=False)
    if not 1 <= len(ids) <= MAX_INPUT_IDS:
        raise InvalidField(path, f"from 1 to {MAX_INPUT_IDS} token ids")
    return array("I", ids)


def _check_prompt(options: pb.EmbedOptions, prompt: str, inputs: Sequence[str | array[int]]) -> None:
    """Refuse to put a prompt that was asked for before what comes in tokens."""
    is_asked = bool(options.instruction) or options.task_type != pb.TASK_TYPE_UNSPECIFIED
    tokens = next((index for index, each in enumerate(inputs) if isinstance(each, array)), None)
    if is_asked and prompt and tokens is not None:
        path = "options.instruction" if options.instruction else "options.task_type"
        raise InvalidField(path, f"inputs[{tokens}] comes in tokens, before which no prompt is put")
