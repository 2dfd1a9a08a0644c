"""`embed` and `rerank`."""

import json
import struct
from collections.abc import Iterator

import grpc
import pytest
from pomona.v1 import common_pb2
from pomona.v1 import embedding_pb2 as e

from tests.support.scripted_server import Fail, ScriptedServer

from .conftest import Run


def answer(request: e.EmbedRequest) -> Iterator[e.EmbedResponse]:
    """Give each text the vector of its length, 2, 3, 4 and 5."""
    made = [
        e.Embedding(
            values=struct.pack("<5f", len(each.text), 2, 3, 4, 5),
            vector_count=1,
            token_count=7,
            truncated=len(each.text) > 9,
        )
        for each in request.inputs
    ]
    yield e.EmbedResponse(embeddings=made, dimensions=5, usage=common_pb2.Usage(prompt_tokens=7 * len(made)))


def test_texts_are_shown_with_their_vectors(server: ScriptedServer, run: Run) -> None:
    server.scripts["Embed"] = answer
    done = run("embed", "m", "cat", "a longer text")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "TEXT           TOKENS  VECTOR",
        "cat            7        3.00000  2.00000  3.00000  4.00000 … of 5",
        "a longer text  7+      13.00000  2.00000  3.00000  4.00000 … of 5",
    ]
    assert done.stderr == "2 texts, 14 tokens\n"
    assert run("embed", "m", "cat").stderr == "1 text, 7 tokens\n"


def test_every_option_sets_its_field(server: ScriptedServer, run: Run) -> None:
    server.scripts["Embed"] = answer
    options = ("--task", "query", "--instruction", "Find", "--dimensions", "5", "--no-normalize", "--truncate", "left")
    assert run("embed", "m", "cat", *options).exit_code == 0
    request = server.call("Embed").request
    assert request.model == "m"
    assert request.options == e.EmbedOptions(
        task_type=e.TASK_TYPE_RETRIEVAL_QUERY,
        instruction="Find",
        dimensions=5,
        normalize=False,
        truncation=e.TRUNCATION_LEFT,
    )


def test_lines_of_standard_input_are_texts_sent_in_batches(server: ScriptedServer, run: Run) -> None:
    server.scripts["Embed"] = answer
    done = run("embed", "m", "--json", stdin="\n".join(f"text {n}" for n in range(100)) + "\n\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["index"] for line in lines] == list(range(100))
    assert [line["text"] for line in lines] == [f"text {n}" for n in range(100)]
    assert lines[0] == {"index": 0, "text": "text 0", "tokenCount": 7, "truncated": False, "vector": [6, 2, 3, 4, 5]}
    assert [len(call.request.inputs) for call in server.calls] == [64, 36]
    assert done.stderr == "100 texts, 700 tokens\n"


def test_documents_are_shown_best_first(server: ScriptedServer, run: Run) -> None:
    ranked = [e.Ranking(document_index=1, score=0.75), e.Ranking(document_index=0, score=0.25)]
    server.scripts["Rerank"] = [e.RerankResponse(rankings=ranked, usage=common_pb2.Usage(prompt_tokens=9))]
    done = run("rerank", "m", "where?", "here", "there", "-n", "2", "--instruction", "i", "--truncate", "right")
    assert done.stdout.splitlines() == ["SCORE   NUMBER  DOCUMENT", "0.7500  1       there", "0.2500  0       here"]
    assert done.stderr == "2 documents, 9 tokens\n"
    assert server.call("Rerank").request == e.RerankRequest(
        model="m",
        query="where?",
        documents=["here", "there"],
        top_n=2,
        truncation=e.TRUNCATION_RIGHT,
        instruction="i",
    )
    done = run("rerank", "m", "where?", "--json", stdin="here\nthere\n")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"documentIndex": 1, "score": 0.75, "document": "there"},
        {"documentIndex": 0, "score": 0.25, "document": "here"},
    ]


@pytest.mark.parametrize("command", [("embed", "m"), ("rerank", "m", "q")])
def test_nothing_to_do_is_wrong_usage(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, stdin="\n\n")
    assert done.exit_code == 2
    assert done.stderr == "error: standard input holds no text\n"


def test_failure_is_told_with_its_reason(server: ScriptedServer, run: Run) -> None:
    reason = "TASK_NOT_SUPPORTED"
    server.scripts["Embed"] = [Fail(grpc.StatusCode.FAILED_PRECONDITION, "the model cannot do this", reason)]
    done = run("embed", "m", "x", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["reason"] == reason
