"""The GenerationService: reads a request strictly, has it generated, and sends what comes of it."""

from collections.abc import Callable

import grpc
from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from worker.errors import ResponseTooLarge
from worker.events import Channel, Completed, Event, SequenceFinished, Started, TextDelta, ToolCallDelta
from worker.served import ServedModel
from worker.services import messages
from worker.services.bodies import BodyReader
from worker.services.edge import Call, Edge
from worker.services.reading import Reading, TextDesk
from worker.validation import Generation, read_count, read_generation

SERVICE = "pomona.v1.GenerationService"


class GenerationService:
    """Answers Generate, StreamGenerate and CountTokens.

    Args:
        desk: where generations are handed in.
        served: returns the loaded model; raises what a caller gets while there is none.
        max_response_bytes: of a unary answer.
    """

    def __init__(self, desk: TextDesk, served: Callable[[], ServedModel], max_response_bytes: int) -> None:
        self._desk = desk
        self._served = served
        self._max_response_bytes = max_response_bytes
        self._bodies = BodyReader()

    def handlers(self, edge: Edge) -> grpc.GenericRpcHandler:
        """Return the methods of this service for a server."""
        methods = {
            "Generate": edge.unary(self.generate),
            "StreamGenerate": edge.stream(self.stream_generate),
            "CountTokens": edge.unary(self.count_tokens),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def generate(self, body: bytes, call: Call) -> pb.GenerateResponse:
        """Return the whole result: what the events of the stream add up to."""
        served = self._served()
        generation = await self._bodies.read(body, lambda read: read_generation(read, pb.GenerateRequest, served.facts))
        async with Reading(self._desk, served, generation, call, "Generate") as reading:
            answer = _Answer(reading.resolved, generation, self._max_response_bytes)
            while not answer.is_complete:
                event = await reading.take()
                if isinstance(event, Started):
                    await call.begin()
                answer.add(event)
        return answer.response

    async def stream_generate(self, body: bytes, call: Call) -> None:
        """Send each event of the engine as a message."""
        served = self._served()
        generation = await self._bodies.read(
            body, lambda read: read_generation(read, pb.StreamGenerateRequest, served.facts)
        )
        event_number = 0
        event: Event | None = None
        async with Reading(self._desk, served, generation, call, "StreamGenerate") as reading:
            while not isinstance(event, Completed):
                event = await reading.take()
                if event_number == 0:
                    await call.begin()
                message = messages.stream_message(event, reading.resolved, generation)
                message.event_number = event_number
                await call.send(message)
                event_number += 1

    async def count_tokens(self, body: bytes, call: Call) -> pb.CountTokensResponse:
        """Count the tokens of a prompt; one over the context is counted too."""
        served = self._served()
        count = await self._bodies.read(body, read_count)
        call.check_envelope(count.envelope, served.resolved.model)
        with await served.lease(count.adapters, call.time_remaining()) as lease:
            resolved = served.resolve(lease)
        ids = (await served.prompter.tokenize(count.prompt, call.time_remaining())).ids
        return pb.CountTokensResponse(
            resolved_model=resolved,
            token_count=len(ids),
            token_ids=common_pb2.TokenIds(ids=ids) if count.return_token_ids else None,
            max_context_tokens=served.facts.max_context_tokens,
        )


class _Answer:
    """A unary answer while its events come; `max_bytes` bounds all its sequences together."""

    def __init__(self, resolved: common_pb2.ResolvedModel, generation: Generation, max_bytes: int) -> None:
        self.response = pb.GenerateResponse(
            resolved_model=resolved,
            request_id=generation.envelope.request_id,
            sequences=[pb.Sequence(sequence_index=index) for index in range(generation.num_sequences)],
        )
        self.is_complete = False
        self._generation = generation
        self._texts: list[dict[Channel, list[str]]] = [
            {channel: [] for channel in Channel} for _ in range(generation.num_sequences)
        ]
        self._num_bytes = 0
        self._max_bytes = max_bytes

    def add(self, event: Event) -> None:
        match event:
            case Started():
                self.response.seed = event.seed
            case TextDelta():
                self._add_delta(event)
            case ToolCallDelta():
                self._add_call(event)
            case SequenceFinished():
                self.response.sequences[event.sequence_index].finish.CopyFrom(messages.finish(event))
            case Completed():
                self._complete(event)
            case _:
                pass

    def _add_delta(self, delta: TextDelta) -> None:
        tokens = [messages.token_info(token) for token in delta.tokens]
        self._make_room(messages.min_bytes(delta.text, tokens))
        self._texts[delta.sequence_index][delta.channel].append(delta.text)
        self.response.sequences[delta.sequence_index].tokens.extend(tokens)

    def _add_call(self, call: ToolCallDelta) -> None:
        message = messages.tool_call(call)
        self._make_room(message.ByteSize())
        self.response.sequences[call.sequence_index].tool_calls.append(message)

    def _make_room(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise ResponseTooLarge(self._max_bytes)

    def _complete(self, completed: Completed) -> None:
        for sequence, texts in zip(self.response.sequences, self._texts, strict=True):
            sequence.text = "".join(texts[Channel.CONTENT])
            sequence.reasoning = "".join(texts[Channel.REASONING])
        self.response.usage.CopyFrom(messages.usage(completed.usage, self._generation))
        self.response.timing.CopyFrom(messages.timing(completed.timing))
        self.is_complete = True
