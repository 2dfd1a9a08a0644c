"""`embed` and `rerank`: vectors of texts, and documents in the order in which they answer a query."""

import struct
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from pomona.v1 import embedding_pb2

from gateway.cli import output
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.failures import UsageError
from gateway.cli.fields import checked, is_text
from gateway.cli.verb import JsonFlag, verb

# Texts of one request; of more, several are sent.
BATCH = 64
SHOWN_CHARS = 60
SHOWN_VALUES = 4


class TaskName(StrEnum):
    """What a vector is for."""

    QUERY = "query"
    DOCUMENT = "document"
    SIMILARITY = "similarity"
    CLASSIFICATION = "classification"
    CLUSTERING = "clustering"


class TruncateName(StrEnum):
    """What is left out of a text that is too long."""

    ERROR = "error"
    LEFT = "left"
    RIGHT = "right"


TASKS = {
    TaskName.QUERY: embedding_pb2.TASK_TYPE_RETRIEVAL_QUERY,
    TaskName.DOCUMENT: embedding_pb2.TASK_TYPE_RETRIEVAL_DOCUMENT,
    TaskName.SIMILARITY: embedding_pb2.TASK_TYPE_SEMANTIC_SIMILARITY,
    TaskName.CLASSIFICATION: embedding_pb2.TASK_TYPE_CLASSIFICATION,
    TaskName.CLUSTERING: embedding_pb2.TASK_TYPE_CLUSTERING,
}
TRUNCATIONS = {
    TruncateName.ERROR: embedding_pb2.TRUNCATION_ERROR,
    TruncateName.LEFT: embedding_pb2.TRUNCATION_LEFT,
    TruncateName.RIGHT: embedding_pb2.TRUNCATION_RIGHT,
}
Truncate = Annotated[
    TruncateName,
    typer.Option(help="Leave out the beginning (left) or the end (right) of what is too long, or fail."),
]


@verb
def embed(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Without any, each line of standard input is one.")
    ] = None,
    task: Annotated[TaskName | None, typer.Option(help="What the vectors are for; the model's prompt for it.")] = None,
    instruction: Annotated[str, typer.Option(metavar="TEXT", help="The task in your own words.")] = "",
    dimensions: Annotated[int | None, typer.Option(metavar="N", help="Fewer values, where the model can.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale to length 1; unset: as the model has it.")
    ] = None,
    truncate: Truncate = TruncateName.ERROR,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Turn texts into vectors.

    With --json: a line for each text, {"index", "text", "tokenCount",
    "truncated", "vector"}; the last is {"error": ...} where it failed.

    Example:
    [bold]pomona embed qwen3-embedding "A cat." "A dog."[/bold]
    [bold]pomona embed qwen3-embedding --task query --json < questions.txt[/bold]
    """
    given = _given(texts, "TEXT")
    options = embedding_pb2.EmbedOptions(
        task_type=embedding_pb2.TASK_TYPE_UNSPECIFIED if task is None else TASKS[task],
        instruction=instruction,
        dimensions=None if dimensions is None else checked("--dimensions", dimensions),
        normalize=normalize,
        truncation=TRUNCATIONS[truncate],
    )
    rows: list[tuple[str, str, str]] = []
    num_tokens = 0
    with connect(server) as connection:
        for start in range(0, len(given), BATCH):
            inputs = [embedding_pb2.EmbedInput(text=text) for text in given[start : start + BATCH]]
            response = connection.embedding.Embed(
                embedding_pb2.EmbedRequest(model=model, inputs=inputs, options=options),
                timeout=connection.timeout_s,
                metadata=connection.metadata,
            )
            num_tokens += response.usage.prompt_tokens
            for index, each in enumerate(response.embeddings, start):
                vector = _values(each.values)
                if as_json:
                    about = {"index": index, "text": given[index], "tokenCount": each.token_count}
                    output.emit({**about, "truncated": each.truncated, "vector": vector})
                else:
                    rows.append((_shown(given[index]), f"{each.token_count}{'+' * each.truncated}", _first(vector)))
    if not as_json:
        output.table(("TEXT", "TOKENS", "VECTOR"), rows)
    output.notice(f"{output.counted(len(given), 'text')}, {output.counted(num_tokens, 'token')}")


@verb
def rerank(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="DOCUMENT", help="Without any, each line of standard input is one.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-n", min=0, metavar="N", help="Only the best; 0: all.")] = 0,
    instruction: Annotated[str, typer.Option(metavar="TEXT", help="What makes a document fit.")] = "",
    truncate: Truncate = TruncateName.ERROR,
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Sort documents by how well they answer a query.

    The server takes them in one request; its limit is told by pomona show.

    With --json: a line for each document, {"documentIndex", "score",
    "document"}, best first; or {"error": ...}.

    Example:
    [bold]pomona rerank qwen3-reranker "Where do cats sleep?" "On mats." "Fish swim."[/bold]
    """
    given = _given(documents, "DOCUMENT")
    request = embedding_pb2.RerankRequest(
        model=model,
        query=query,
        documents=given,
        top_n=checked("--top", top),
        truncation=TRUNCATIONS[truncate],
        instruction=instruction,
    )
    with connect(server) as connection:
        response = connection.embedding.Rerank(request, timeout=connection.timeout_s, metadata=connection.metadata)
    ranked = [(each.document_index, each.score, given[each.document_index]) for each in response.rankings]
    if as_json:
        for index, score, document in ranked:
            output.emit({"documentIndex": index, "score": score, "document": document})
    else:
        output.table(
            ("SCORE", "NUMBER", "DOCUMENT"), [(f"{score:.4f}", f"{n}", _shown(text)) for n, score, text in ranked]
        )
    output.notice(f"{output.counted(len(given), 'document')}, {output.counted(response.usage.prompt_tokens, 'token')}")


def _given(texts: Sequence[str] | None, name: str) -> list[str]:
    """Return the texts of the command line, or the lines of standard input that are not empty."""
    if texts:
        return list(texts)
    if sys.stdin.isatty():
        raise UsageError(f"give a {name}, or one a line on standard input")
    lines = [line for line in _lines() if line]
    if not lines:
        raise UsageError("standard input holds no text")
    return lines


def _lines() -> Iterator[str]:
    problem = "standard input holds bytes that are not UTF-8"
    try:
        for line in sys.stdin:
            if not is_text(line):
                raise UsageError(problem)
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(problem) from error


def _values(values: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(values) // 4}f", values))


def _first(vector: Sequence[float]) -> str:
    shown = " ".join(f"{value:8.5f}" for value in vector[:SHOWN_VALUES])
    return f"{shown} … of {len(vector)}" if len(vector) > SHOWN_VALUES else shown


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"
