"""A client for programs without an event loop."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from pomona import requests
from pomona.answer import Answer
from pomona.audio import Audio
from pomona.connection import TIMEOUT_S, Connection, Pem
from pomona.failure import failure_of
from pomona.options import CallOptions, ChatOptions, EmbedOptions, GenerateOptions, RerankOptions, TranscribeOptions
from pomona.transcript import Transcript
from pomona.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    transcription_pb2_grpc,
)
from pomona.vectors import vectors_of

PAGE_MODELS = 100

_Asked = TypeVar("_Asked", bound=Message)
_Told = TypeVar("_Told", bound=Message)
_Stub = TypeVar("_Stub")


def connect(
    address: str,
    *,
    tls_ca: Pem | bool | None = None,
    tls_cert: tuple[Pem, Pem] | None = None,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
    service_config: str | None = None,
) -> "Client":
    """Return a client of the server at `address`, `HOST:PORT` or `unix:PATH`; the connection is made by the first call.

    Args:
        address: where the server listens.
        tls_ca: certificates to trust, a PEM file or its bytes; True: those of the system; None: no TLS.
        tls_cert: the client's own certificate and its key, where the server asks for one.
        token: goes with every call; without TLS to this machine only.
        timeout_s: the deadline of a call that gives none, in seconds, above 0.
        service_config: JSON of gRPC's service config, in place of the recommended retry policy.

    Raises:
        ValueError: a token would go in the clear over a network, or the timeout is not above 0.
        OSError: a PEM file cannot be read.
    """
    return Client(Connection(address, tls_ca, tls_cert, token, timeout_s, service_config))


class Client:
    """Calls a server; threads may share it. Closing it, or leaving its `with` block, cancels what still runs.

    Every method that calls raises `PomonaError` where the call fails.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        credentials, options = connection.credentials(), connection.options()
        if credentials is None:
            self._channel = grpc.insecure_channel(connection.address, options)
        else:
            self._channel = grpc.secure_channel(connection.address, credentials, options)
        self._generation = self.stub(generation_pb2_grpc.GenerationServiceStub)
        self._embedding = self.stub(embedding_pb2_grpc.EmbeddingServiceStub)
        self._transcription = self.stub(transcription_pb2_grpc.TranscriptionServiceStub)
        self._models = self.stub(model_pb2_grpc.ModelServiceStub)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call by a stub of your own needs to bring: the token."""
        return self._connection.metadata

    def stub(self, kind: Callable[[grpc.Channel], _Stub]) -> _Stub:
        """Return a stub of the contract on this client's channel, for what has no method here.

        Its calls take `metadata=client.metadata` and `timeout=` themselves, and raise `grpc.RpcError`.
        """
        return kind(self._channel)

    def generate(self, model: str, prompt: requests.Text, **options: Unpack[GenerateOptions]) -> Answer:
        """Have a model continue `prompt`, text or token ids, as it stands."""
        return self._stream(requests.generation(model, prompt, options), options)

    def chat(self, model: str, messages: str | Sequence[requests.ChatTurn], **options: Unpack[ChatOptions]) -> Answer:
        """Have a model answer a message of the user, or several messages such as `{"role": "user", "text": ...}`."""
        return self._stream(requests.chat(model, messages, options), options)

    def count_tokens(self, model: str, text: str | Sequence[requests.ChatTurn], **options: Unpack[CallOptions]) -> int:
        """Return how many tokens a prompt, or a conversation, has."""
        return self._ask(self._generation.CountTokens, requests.counting(model, text), options).token_count

    def embed(self, model: str, texts: Sequence[str], **options: Unpack[EmbedOptions]) -> list[list[float]]:
        """Return a vector for each text."""
        return vectors_of(self._ask(self._embedding.Embed, requests.embedding(model, texts, options), options))

    def rerank(
        self, model: str, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]
    ) -> list[embedding_pb2.Ranking]:
        """Return documents by their index with a score, the best first."""
        request = requests.ranking(model, query, documents, options)
        return list(self._ask(self._embedding.Rerank, request, options).rankings)

    def transcribe(self, model: str, audio: Audio, **options: Unpack[TranscribeOptions]) -> Transcript:
        """Have a model write down `audio`: a file's path, its bytes, or chunks of bytes as they come."""
        config = requests.transcription(model, options)
        timeout_s, metadata = self._timeout_s(options), self.metadata
        call = self._transcription.StreamTranscribe
        return Transcript(lambda sent: call(sent, timeout=timeout_s, metadata=metadata), config, audio)

    def models(self) -> list[model_pb2.Model]:
        """Return all models that the caller may see."""
        found: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=PAGE_MODELS)
        while True:
            page = self._ask(self._models.ListModels, request, {})
            found += page.models
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def model(self, name: str) -> model_pb2.Model:
        """Return what is known of a model: state, limits, what it can do."""
        return self._ask(self._models.GetModel, model_pb2.GetModelRequest(model=name), {}).model

    def load(self, name: str, **options: Unpack[CallOptions]) -> model_pb2.Model:
        """Load a model, and return once it serves. The first request would load it, too."""
        return self._ask(self._models.LoadModel, model_pb2.LoadModelRequest(model=name), options).model

    def unload(self, name: str, **options: Unpack[CallOptions]) -> model_pb2.Model:
        """Unload a model, and return once its memory is free."""
        return self._ask(self._models.UnloadModel, model_pb2.UnloadModelRequest(model=name), options).model

    def close(self) -> None:
        """Cancel what still runs, and end the connection."""
        self._channel.close()

    def _stream(self, request: generation_pb2.StreamGenerateRequest, options: CallOptions) -> Answer:
        call = self._generation.StreamGenerate
        return Answer(call(request, timeout=self._timeout_s(options), metadata=self.metadata))

    def _ask(
        self, method: "grpc.UnaryUnaryMultiCallable[_Asked, _Told]", request: _Asked, options: CallOptions
    ) -> _Told:
        try:
            return method(request, timeout=self._timeout_s(options), metadata=self.metadata)
        except grpc.RpcError as error:
            raise failure_of(error) from error

    def _timeout_s(self, options: CallOptions) -> float:
        return options.get("timeout_s", self._connection.timeout_s)
