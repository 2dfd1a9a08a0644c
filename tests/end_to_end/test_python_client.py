"""The client in Python against a whole server: three kinds of models, every call."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pomona
import pytest
from pomona.v1 import model_pb2

from tests.support.served import Served, served
from tests.support.tiny_embedders import write_embedder
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import write_mlx

SECOND_OF_SILENCE = bytes(2 * 16_000)
RAW = ("s16_le", 16_000, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    models = [f"says={write_llama(folder / 'says')}", f"maps={write_embedder(folder / 'maps')}"]
    models.append(f"hears={write_mlx(folder / 'hears')}")
    with served(*(flag for model in models for flag in ("--model", model))) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[pomona.Client]:
    with pomona.connect(server.address, timeout_s=40) as connected:
        yield connected


def test_answers_are_the_same_however_they_are_read(client: pomona.Client, server: Served) -> None:
    def ask() -> pomona.Answer:
        return client.chat("says", "hello", max_tokens=6, temperature=0)

    whole = ask().result()
    assert "".join(ask()) == whole.text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    assert client.count_tokens("says", [{"role": "user", "text": "hello"}]) == whole.usage.prompt_tokens

    async def asked() -> str:
        async with pomona.connect_async(server.address, timeout_s=40) as other:
            return "".join([text async for text in other.chat("says", "hello", max_tokens=6, temperature=0)])

    assert asyncio.run(asked()) == whole.text


def test_vectors_and_transcripts_come(client: pomona.Client, tmp_path: Path) -> None:
    assert len(client.embed("maps", ["a", "b"])) == 2
    heard = client.transcribe("hears", SECOND_OF_SILENCE, pcm=RAW, languages=["en"]).result()
    assert heard.completed is not None
    assert heard.completed.usage.audio_duration.seconds == 1
    file = tmp_path / "silence.raw"
    file.write_bytes(SECOND_OF_SILENCE)
    assert "".join(client.transcribe("hears", file, pcm=RAW, languages=["en"])) == heard.text


def test_models_are_listed_loaded_and_unloaded(client: pomona.Client) -> None:
    assert {model.model for model in client.models()} == {"says", "maps", "hears"}
    assert client.load("says").state == model_pb2.MODEL_STATE_ACTIVE
    assert client.unload("says").state == model_pb2.MODEL_STATE_UNLOADED
    assert client.model("says").state == model_pb2.MODEL_STATE_UNLOADED


def test_threads_share_a_client(client: pomona.Client) -> None:
    texts: list[str] = []

    def ask() -> None:
        texts.append(client.generate("says", "x", max_tokens=5, temperature=0).result().text)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len(texts) == 8
    assert len(set(texts)) == 1


def test_what_cannot_be_honoured_is_named(client: pomona.Client) -> None:
    with pytest.raises(pomona.PomonaError) as caught:
        client.generate("says", "x", top_p=7).result()
    assert caught.value.reason == "INVALID_FIELD"
    assert set(caught.value.violations) == {"spec.sampling.top_p"}
