"""The client for asyncio, against a server that follows a script."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pomona
import pytest
from pomona.v1 import embedding_pb2, model_pb2
from pomona.v1 import generation_pb2 as g

from tests.pomona.test_client import Listener, heard
from tests.support.scripted_server import Fail, Hold, ScriptedServer, answer
from tests.support.waiting import eventually


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[pomona.AsyncClient]:
    async with pomona.connect_async(server.address, token="secret", timeout_s=20) as connected:
        yield connected


async def test_iterating_gives_the_text(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = answer("The ", "sky.")
    assert [text async for text in client.generate("smol", "Why?", max_tokens=7)] == ["The ", "sky."]
    call = server.call("StreamGenerate")
    assert call.request.spec.stopping.max_tokens == 7
    assert call.metadata["authorization"] == "Bearer secret"


async def test_events_and_a_result(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = answer("Hi")
    kinds = [type(event) async for event in client.chat("smol", "Hello").events()]
    assert kinds == [g.GenerationStarted, g.TokenDelta, g.SequenceFinished, g.GenerationCompleted]
    assert (await client.chat("smol", "Hello").result()).text == "Hi"


async def test_leaving_a_block_early_cancels(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    async with client.generate("smol", "x") as reply:
        async for _ in reply:
            break
    assert await asyncio.to_thread(server.call("StreamGenerate").is_ended_by_client.wait, 5)


async def test_leaving_a_block_unread_cancels(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    async with client.generate("smol", "x") as reply:
        await eventually(lambda: bool(server.calls))
    assert await asyncio.to_thread(server.call("StreamGenerate").is_ended_by_client.wait, 5)
    assert not reply.written.text


async def test_closing_the_iterator_cancels(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    reply = client.generate("smol", "x")
    texts = aiter(reply)
    assert await anext(texts) == "a"
    await texts.aclose()
    assert await asyncio.to_thread(server.call("StreamGenerate").is_ended_by_client.wait, 5)
    assert reply.written.text == "a"


async def test_an_answer_that_another_task_cancels_says_so(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    reply = client.generate("smol", "x")
    texts = aiter(reply)
    await anext(texts)
    asyncio.get_running_loop().call_soon(reply.cancel)
    with pytest.raises(pomona.PomonaError) as caught:
        await anext(texts)
    assert caught.value.code == grpc.StatusCode.CANCELLED


async def test_a_task_that_is_cancelled_cancels_its_call(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamGenerate"] = [*answer("a")[:2], Hold()]
    reply = client.generate("smol", "x")
    task = asyncio.create_task(reply.result())
    await eventually(lambda: bool(reply.written.text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.call("StreamGenerate").is_ended_by_client.wait, 5)


async def test_failures_bring_their_reason(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    refusal = Fail(grpc.StatusCode.NOT_FOUND, "No.", "MODEL_NOT_FOUND", {"model": "none"})
    server.scripts["StreamGenerate"] = server.scripts["GetModel"] = [refusal]
    with pytest.raises(pomona.PomonaError) as caught:
        await client.generate("none", "x").result()
    assert (caught.value.reason, caught.value.metadata) == ("MODEL_NOT_FOUND", {"model": "none"})
    with pytest.raises(pomona.PomonaError) as caught:
        await client.model("none")
    assert caught.value.reason == "MODEL_NOT_FOUND"


async def test_questions_have_answers(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    vector = embedding_pb2.Embedding(values=struct.pack("<f", 0.5))
    server.scripts["Embed"] = [embedding_pb2.EmbedResponse(embeddings=[vector])]
    server.scripts["Rerank"] = [embedding_pb2.RerankResponse(rankings=[embedding_pb2.Ranking(score=1)])]
    server.scripts["ListModels"] = [model_pb2.ListModelsResponse(models=[model_pb2.Model(model="smol")])]
    server.scripts["GetModel"] = [model_pb2.GetModelResponse(model=model_pb2.Model(model="smol"))]
    server.scripts["LoadModel"] = [model_pb2.LoadModelResponse(model=model_pb2.Model(model="smol"))]
    server.scripts["UnloadModel"] = [model_pb2.UnloadModelResponse(model=model_pb2.Model(model="smol"))]
    server.scripts["CountTokens"] = [g.CountTokensResponse(token_count=3)]
    assert await client.embed("e", ["a"]) == [[0.5]]
    assert [ranking.score for ranking in await client.rerank("r", "q", ["a"])] == [1]
    models = [
        *await client.models(),
        await client.model("smol"),
        await client.load("smol"),
        await client.unload("smol"),
    ]
    assert {model.model for model in models} == {"smol"}
    assert await client.count_tokens("smol", "Hi") == 3


async def later() -> AsyncIterator[bytes]:
    yield b"abc"
    await asyncio.sleep(0)
    yield b"de"


@pytest.mark.parametrize("kind", ["path", "bytes", "chunks", "later"])
async def test_audio_is_a_file_bytes_or_what_comes(
    server: ScriptedServer, client: pomona.AsyncClient, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(b"abcde")
    audio = {"path": file, "bytes": b"abcde", "chunks": iter([b"abc", b"de"]), "later": later()}[kind]
    listener = server.scripts["StreamTranscribe"] = Listener("Hello ", "there.")
    assert [text async for text in client.transcribe("w", audio)] == ["Hello ", "there."]
    assert listener.chunks == ([b"abc", b"de"] if kind in {"chunks", "later"} else [b"abcd", b"e"])


async def test_audio_that_cannot_be_read_fails_as_such(
    server: ScriptedServer, client: pomona.AsyncClient, tmp_path: Path
) -> None:
    server.scripts["StreamTranscribe"] = Listener("Hello")
    with pytest.raises(FileNotFoundError):
        await client.transcribe("w", tmp_path / "none.wav").result()
    assert await asyncio.to_thread(server.call("StreamTranscribe").is_ended_by_client.wait, 5)


async def test_a_transcript_ends_with_its_block(server: ScriptedServer, client: pomona.AsyncClient) -> None:
    server.scripts["StreamTranscribe"] = [*heard("a")[:3], Hold()]
    async with client.transcribe("w", b"abc") as transcript:
        async for text in transcript:
            assert text == "a"
            break
    assert await asyncio.to_thread(server.call("StreamTranscribe").is_ended_by_client.wait, 5)
