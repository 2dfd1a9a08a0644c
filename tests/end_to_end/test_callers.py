"""A server with TLS and tokens and a real worker: who shares cached prompts, and that no log holds what callers say."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from pomona.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    transcription_pb2,
    transcription_pb2_grpc,
)
from pomona.v1 import (
    generation_pb2 as g,
)

from tests.gateway.callers import grant
from tests.support.served import Served, served
from tests.support.tiny_embedders import write_embedder
from tests.support.tiny_models import write_llama
from tests.support.tiny_whisper import write_mlx
from tests.support.waiting import wait_until
from tests.support.worker_client import refusal_of

TIMEOUT_S = 30.0
CANARY = "canary7f3a"
LONG = "the quick brown fox jumps over the lazy dog " * 4


@dataclass
class Site:
    """A server over TLS, and what its callers need."""

    folder: Path
    server: Served
    root: bytes
    metadata: dict[str, Any]

    @contextlib.contextmanager
    def channel(self) -> Generator[grpc.Channel]:
        port = self.server.address.rpartition(":")[2]
        with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(self.root)) as channel:
            yield channel

    def cached_tokens(self, channel: grpc.Channel, caller: str, prompt: str) -> int:
        spec = g.GenerationSpec(prompt=prompt, stopping=g.StoppingParams(max_tokens=2))
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        request = g.GenerateRequest(model="tiny", spec=spec)
        response = stub.Generate(request, metadata=self.metadata[caller], timeout=TIMEOUT_S)
        return int(response.usage.cached_prompt_tokens)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("callers")
    write_llama(folder / "tiny")
    write_mlx(folder / "speech")
    write_embedder(folder / "vectors")
    tokens, authority = folder / "tokens.json", trustme.CA()
    made = authority.issue_cert("localhost")
    (folder / "server.pem").write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
    (folder / "server.key").write_bytes(made.private_key_pem.bytes())
    (folder / "root.pem").write_bytes(authority.cert_pem.bytes())
    scopes = ("generate", "transcribe", "embed", "models.read")
    groups = {"ann": "team", "bob": "team", "eve": "eve", "root": "root"}
    metadata = {name: grant(tokens, name, scopes, group=group) for name, group in groups.items()}
    ((_, header),) = metadata["ann"]
    (folder / "ann.token").write_text(header.removeprefix("Bearer ") + "\n")
    models = [f"--model={name}={folder / name}" for name in ("tiny", "speech", "vectors")]
    arguments = [*models, "--tokens", str(tokens), "--log-level", "debug"]
    arguments += ["--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]
    # Beyond loopback: with both it may.
    with served(*arguments, "--log-format", "json", listen="0.0.0.0:0") as running:
        yield Site(folder, running, authority.cert_pem.bytes(), metadata)


def test_the_command_line_gets_through_with_the_authority_and_its_token(site: Site) -> None:
    port = site.server.address.rpartition(":")[2]
    command = [sys.executable, "-P", "-m", "gateway", "models", "--server", f"localhost:{port}", "--json"]
    trusting = ["--tls-ca", str(site.folder / "root.pem"), "--token-file", str(site.folder / "ann.token")]
    allowed = subprocess.run([*command, *trusting], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert "tiny" in [model["model"] for model in json.loads(allowed.stdout)["models"]]
    refused = subprocess.run([*command, *trusting[:2]], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert "CREDENTIALS_MISSING" in refused.stderr
    assert "--token-file" in refused.stderr


def test_cached_prompts_are_shared_within_a_group_and_never_between_two(site: Site) -> None:
    with site.channel() as channel:
        assert site.cached_tokens(channel, "ann", LONG) == 0
        assert site.cached_tokens(channel, "bob", LONG) > 0
        assert site.cached_tokens(channel, "eve", LONG) == 0
        assert site.cached_tokens(channel, "eve", LONG) > 0
        assert site.cached_tokens(channel, "root", LONG) == 0


def test_two_callers_may_have_requests_of_one_id_at_a_time(site: Site) -> None:
    with site.channel() as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        spec = g.GenerationSpec(prompt="hello", stopping=g.StoppingParams(max_tokens=200, ignore_eos=True))
        request = g.StreamGenerateRequest(model="tiny", request_id="same", spec=spec)
        first, second = (
            stub.StreamGenerate(request, metadata=site.metadata[name], timeout=TIMEOUT_S) for name in ("ann", "eve")
        )
        next(first)
        next(second)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.StreamGenerate(request, metadata=site.metadata["ann"], timeout=TIMEOUT_S))
        told: Any = caught.value
        assert refusal_of(told).reason == "DUPLICATE_REQUEST_ID"
        admin: Any = server_pb2_grpc.AdminServiceStub(channel)
        cancel = server_pb2.CancelRequestRequest(request_id="same")
        admin.CancelRequest(cancel, metadata=site.metadata["bob"], timeout=TIMEOUT_S)  # he has none
        admin.CancelRequest(cancel, metadata=site.metadata["eve"], timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError):
            list(second)
        assert sum(1 for event in first if event.HasField("delta")) > 1


def test_neither_logs_nor_statuses_hold_what_callers_say_or_where_files_are(site: Site) -> None:
    with site.channel() as channel:
        refusals = [said for said in everything_said(site, channel) if said is not None]
        metadata = (("authorization", f"Bearer {CANARY}"), ("x-other", CANARY))
        stub: Any = model_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=TIMEOUT_S)
        kill_a_worker(site, channel)
    assert site.server.stop() == 0
    log = list(site.server.log)
    assert any("request ended" in line for line in log)
    assert any("call refused" in line for line in log)
    assert [line for line in log if CANARY in line] == []
    for _, header in (one for pairs in site.metadata.values() for one in pairs):
        assert not any(header.rpartition("_")[2] in line for line in log)
    assert len(refusals) >= 10
    assert sum('"OK"' in line for line in log if "request ended" in line) >= 5
    for said in refusals:
        assert str(site.folder) not in said
        assert "Traceback" not in said


def everything_said(site: Site, channel: grpc.Channel) -> Iterator[str | None]:
    """Send the canary in every place that holds what a caller says; yield how each call was refused."""
    generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    speech: Any = transcription_pb2_grpc.TranscriptionServiceStub(channel)
    user = g.ChatMessage(role=g.ROLE_USER, text=CANARY)
    short = g.StoppingParams(max_tokens=2, stop_strings=[CANARY])
    specs = [
        g.GenerationSpec(prompt=CANARY, stopping=short),
        g.GenerationSpec(chat=g.ChatInput(messages=[user]), stopping=short),
        g.GenerationSpec(prompt=CANARY, stopping=g.StoppingParams(stop_strings=[CANARY] * 99)),
        g.GenerationSpec(prompt=CANARY, constraint=g.Constraint(regex=f"({CANARY}")),
        g.GenerationSpec(prompt=CANARY, constraint=g.Constraint(json_schema=f'{{"{CANARY}"')),
        g.GenerationSpec(prompt=CANARY, constraint=g.Constraint(lark_grammar=f"start: {CANARY}")),
        g.GenerationSpec(prompt=CANARY * 4096),
        g.GenerationSpec(prompt=CANARY, cache=g.CacheOptions(cache_salt=CANARY * 99)),
        g.GenerationSpec(chat=g.ChatInput(messages=[user], tools=[g.ToolSpec(name=CANARY, description=CANARY)])),
        g.GenerationSpec(chat=g.ChatInput(messages=[user, g.ChatMessage(text=CANARY)])),
    ]
    chat = g.ChatInput(messages=[user])
    chat.template_vars[CANARY].string_value = CANARY
    specs.append(g.GenerationSpec(chat=chat))
    for spec in specs:
        request = g.GenerateRequest(model="tiny", spec=spec)
        yield said_by(
            lambda request=request: generation.Generate(request, metadata=site.metadata["eve"], timeout=TIMEOUT_S)
        )
    pcm = transcription_pb2.AudioFormat(
        pcm=transcription_pb2.RawPcm(
            encoding=transcription_pb2.RawPcm.ENCODING_S16_LE, sample_rate_hz=16_000, channel_count=1
        )
    )
    config = transcription_pb2.TranscriptionConfig(format=pcm, initial_prompt=CANARY, phrases=[CANARY])
    sound = CANARY.encode() * 2000
    for model, told in (("tiny", None), ("speech", None), ("speech", config)):
        recording = transcription_pb2.TranscribeRequest(model=model, audio=sound, config=told)
        yield said_by(
            lambda recording=recording: speech.Transcribe(recording, metadata=site.metadata["eve"], timeout=TIMEOUT_S)
        )
    embedding: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel)
    options = embedding_pb2.EmbedOptions(instruction=CANARY)
    for told_options in (None, options):
        vectors = embedding_pb2.EmbedRequest(
            model="vectors", inputs=[embedding_pb2.EmbedInput(text=CANARY)], options=told_options
        )
        yield said_by(
            lambda vectors=vectors: embedding.Embed(vectors, metadata=site.metadata["eve"], timeout=TIMEOUT_S)
        )
    raw: Any = channel.unary_unary("/pomona.v1.GenerationService/Generate")
    for body in (CANARY.encode(), b"\n\x04tiny\x8a\x7d" + bytes([len(CANARY)]) + CANARY.encode()):
        yield said_by(lambda body=body: raw(body, metadata=site.metadata["eve"], timeout=TIMEOUT_S))


def said_by(call: Any) -> str | None:
    """Return the whole status of a call that fails, its trailers too; None where it succeeds."""
    try:
        call()
    except grpc.RpcError as error:
        told: Any = error
        assert refusal_of(told).reason
        return f"{told.details()} {told.trailing_metadata()}"
    return None


def kill_a_worker(site: Site, channel: grpc.Channel) -> None:
    """End the worker under a request, so that its last words are in the log."""
    generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    models: Any = model_pb2_grpc.ModelServiceStub(channel)
    spec = g.GenerationSpec(prompt=CANARY, stopping=g.StoppingParams(max_tokens=4000, ignore_eos=True))
    request = g.StreamGenerateRequest(model="tiny", spec=spec)
    call = generation.StreamGenerate(request, metadata=site.metadata["eve"], timeout=TIMEOUT_S)
    next(call)
    asked = model_pb2.GetModelRequest(model="tiny")
    model = models.GetModel(asked, metadata=site.metadata["root"], timeout=TIMEOUT_S).model
    os.kill(model.workers[0].pid, signal.SIGABRT)
    with pytest.raises(grpc.RpcError):
        list(call)
    wait_until(lambda: any("WORKER_DIED" in line for line in site.server.log), TIMEOUT_S)
