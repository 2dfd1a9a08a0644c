"""One true cause for each reason that a worker answers with: a whole server, and real workers of tiny models."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import (
    common_pb2,
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    transcription_pb2_grpc,
)
from pomona.v1 import generation_pb2 as g
from pomona.v1 import transcription_pb2 as t

from gateway.sockets import PARENT, PREFIX
from tests.gateway.statuses import Seen, failure_of
from tests.support.tiny_adapters import write_random
from tests.support.tiny_models import CHAT_TEMPLATE, write_llama
from tests.support.tiny_whisper import write_mlx
from tests.support.worker_client import chat

TIMEOUT_S = 30.0
CONTEXT_TOKENS = 1300
TEXT, SPEECH = "text", "speech"
TEMPLATE = "{% if messages[0]['content'] == 'raise' %}{{ raise_exception('no such talk') }}{% endif %}" + CHAT_TEMPLATE
PCM = t.AudioFormat(pcm=t.RawPcm(encoding=t.RawPcm.ENCODING_S16_LE, sample_rate_hz=16_000, channel_count=1))
RAW = t.TranscriptionConfig(format=PCM, voice_activity_filter=False, temperature=0, languages=["en"])
LONG = g.StoppingParams(max_tokens=1200, ignore_eos=True)
WIDE_RANK = 256  # its matrices are over the megabyte that adapters may take here


def write_settings(folder: Path) -> Path:
    """Write two models with their adapters, and settings with narrow limits."""
    text = write_llama(folder / "text")
    told = json.loads((text / "tokenizer_config.json").read_text())
    (text / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": TEMPLATE}))
    speech = folder / "speech"
    speech.mkdir()
    write_mlx(speech)
    store = folder / "adapters"
    for seed, name in enumerate(("a", "first", "bad")):
        write_random(store / name, seed=seed)
    write_random(store / "wide", rank=WIDE_RANK, seed=9)
    (store / "bad" / "adapter_config.json").write_text('{"use_dora": true}')
    path = folder / "settings.toml"
    path.write_text(
        f"""
        [grpc]
        max_response_bytes = 2000
        [worker]
        max_audio_s = 60.0
        max_audio_decoded_bytes = 4194304
        [[models]]
        name = "{TEXT}"
        checkpoint = "{text}"
        context_tokens = {CONTEXT_TOKENS}
        adapters_folder = "{store}"
        adapters_bytes = 1048576
        adapters = [{{adapter = "first", pinned = true}}]
        [[models]]
        name = "{SPEECH}"
        checkpoint = "{speech}"
        """
    )
    return path


class Caller:
    """Stubs of the server, and its two models."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        self.embedding: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        self.speech: Any = transcription_pb2_grpc.TranscriptionServiceStub(channel)
        self.adapters: Any = model_pb2_grpc.AdapterServiceStub(channel)

    async def generate(self, adapters: tuple[str, ...] = (), **spec: Any) -> Seen:
        """Return how a generation fails."""
        fields: dict[str, Any] = {**spec} if "chat" in spec else {"prompt": "ab", **spec}
        uses = [common_pb2.AdapterUse(adapter=name) for name in adapters]
        asked = g.GenerateRequest(model=TEXT, adapters=uses, spec=g.GenerationSpec(**fields))
        return await failure_of(self.generation.Generate(asked, timeout=TIMEOUT_S))

    async def load(self, adapter: str, source: str = "") -> Any:
        """Load an adapter."""
        asked = model_pb2.LoadAdapterRequest(model=TEXT, adapter=adapter, source=source)
        return await self.adapters.LoadAdapter(asked, timeout=TIMEOUT_S)

    async def transcribe(self, audio: bytes, config: t.TranscriptionConfig = RAW) -> Seen:
        """Return how a transcription fails."""
        asked = t.TranscribeRequest(model=SPEECH, audio=audio, config=config)
        return await failure_of(self.speech.Transcribe(asked, timeout=TIMEOUT_S))

    async def listen(self, *messages: t.StreamTranscribeRequest, **config: Any) -> Seen:
        """Return how a live stream fails that stays open."""
        over = asyncio.Event()

        async def sent() -> AsyncIterator[t.StreamTranscribeRequest]:
            settings = t.StreamTranscriptionConfig(transcription=RAW, **config)
            yield t.StreamTranscribeRequest(model=SPEECH, config=settings)
            for message in messages:
                yield message
            await over.wait()

        try:
            return await failure_of(self.speech.StreamTranscribe(sent(), timeout=TIMEOUT_S))
        finally:
            over.set()


async def wrong_task(caller: Caller) -> Seen:
    """Have a model that generates embed."""
    asked = embedding_pb2.EmbedRequest(model=TEXT, inputs=[embedding_pb2.EmbedInput(text="a")])
    return await failure_of(caller.embedding.Embed(asked, timeout=TIMEOUT_S))


async def too_much_audio(caller: Caller) -> Seen:
    """Say that more seconds are skipped than a stream may last."""
    return await caller.listen(t.StreamTranscribeRequest(skip=Duration(seconds=61)))


async def too_large_audio(caller: Caller) -> Seen:
    """Send what decodes to more bytes than may be."""
    form = t.RawPcm(encoding=t.RawPcm.ENCODING_F32_LE, sample_rate_hz=48_000, channel_count=8)
    return await caller.transcribe(bytes((1 << 22) + 32), t.TranscriptionConfig(format=t.AudioFormat(pcm=form)))


async def adapter_in_use(caller: Caller) -> Seen:
    """Unload an adapter that a stream uses for longer than the caller waits."""
    await caller.load("a")
    spec = g.GenerationSpec(prompt="ab", stopping=LONG)
    asked = g.StreamGenerateRequest(model=TEXT, adapters=[common_pb2.AdapterUse(adapter="a")], spec=spec)
    call = caller.generation.StreamGenerate(asked, timeout=TIMEOUT_S)
    await call.read()
    unload = model_pb2.UnloadAdapterRequest(model=TEXT, adapter="a")
    failure = await failure_of(caller.adapters.UnloadAdapter(unload, timeout=0.6))
    call.cancel()
    return failure


async def strange_secret(caller: Caller) -> Seen:
    """Call the worker's own socket without being its gateway."""
    stub: Any = model_pb2_grpc.ModelServiceStub(caller.channel)
    model = (await stub.LoadModel(model_pb2.LoadModelRequest(model=TEXT), timeout=TIMEOUT_S)).model
    socket = socket_of(model.workers[0].instance_id)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=(("grpc.default_authority", "localhost"),)) as own:
        stub = generation_pb2_grpc.GenerationServiceStub(own)
        asked = g.CountTokensRequest(model=TEXT, prompt="ab")
        return await failure_of(stub.CountTokens(asked, metadata=(("x-pomona-secret", "guessed"),), timeout=TIMEOUT_S))


def socket_of(instance_id: str) -> Path:
    """Return where a worker of this machine listens; folders of other gateways may go meanwhile."""
    candidates = [folder / f"w-{instance_id}.sock" for folder in PARENT.iterdir() if folder.name.startswith(PREFIX)]
    (found,) = [path for path in candidates if path.exists()]
    return found


Cause = Callable[[Caller], Awaitable[Seen]]
CAUSES: Mapping[str, Cause] = {
    "UNSUPPORTED_OPTION": lambda caller: caller.generate(stopping=g.StoppingParams(max_reasoning_tokens=3)),
    "CONTEXT_TOO_LONG": lambda caller: caller.generate(prompt="x" * (CONTEXT_TOKENS + 1)),
    "CONSTRAINT_INVALID": lambda caller: caller.generate(constraint=g.Constraint(regex="a(")),
    "CONSTRAINT_TOO_COMPLEX": lambda caller: caller.generate(constraint=g.Constraint(json_schema="x" * (1 << 21))),
    "CHAT_TEMPLATE_REJECTED": lambda caller: caller.generate(chat=chat("raise")),
    "RESPONSE_TOO_LARGE": lambda caller: caller.generate(stopping=LONG, output=g.OutputOptions(token_ids=True)),
    "TASK_NOT_SUPPORTED": wrong_task,
    "AUDIO_UNDECODABLE": lambda caller: caller.transcribe(b"nonsense" * 100, t.TranscriptionConfig()),
    "AUDIO_TOO_LONG": too_much_audio,
    "AUDIO_TOO_LARGE": too_large_audio,
    "STREAM_ORDER": lambda caller: caller.listen(t.StreamTranscribeRequest(config=t.StreamTranscriptionConfig())),
    "ADAPTER_NOT_FOUND": lambda caller: caller.generate(adapters=("nobody",)),
    "ADAPTER_CONFLICT": lambda caller: failure_of(caller.load("first", "a")),
    "ADAPTER_INCOMPATIBLE": lambda caller: failure_of(caller.load("bad")),
    "ADAPTER_CAPACITY": lambda caller: failure_of(caller.load("wide")),
    "ADAPTER_IN_USE": adapter_in_use,
    "CREDENTIALS_INVALID": strange_secret,
}
