"""Turns the engine's plain events into messages of the contract."""

from collections.abc import Sequence

from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from worker.events import (
    Channel,
    Completed,
    Event,
    Failed,
    FinishReason,
    PrefillProgress,
    SequenceFinished,
    Started,
    TextDelta,
    Timing,
    TokenDetail,
    ToolCallDelta,
    Usage,
    Waiting,
)
from worker.validation import Generation

# What an element of a list takes on the wire beside its content, at least: a tag and a length.
ELEMENT_BYTES = 2

FINISH_REASONS = {
    FinishReason.EOS: pb.FINISH_REASON_EOS,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.MAX_TOKENS: pb.FINISH_REASON_MAX_TOKENS,
    FinishReason.CONTEXT_LENGTH: pb.FINISH_REASON_CONTEXT_LENGTH,
    FinishReason.TOOL_CALL: pb.FINISH_REASON_TOOL_CALL,
    FinishReason.CONSTRAINT_COMPLETE: pb.FINISH_REASON_CONSTRAINT_COMPLETE,
}
CHANNELS = {Channel.CONTENT: pb.CHANNEL_CONTENT, Channel.REASONING: pb.CHANNEL_REASONING}


def stream_message(
    event: Event, resolved: common_pb2.ResolvedModel, generation: Generation
) -> pb.StreamGenerateResponse:
    """Return the message of a stream that says `event`; its number is still to be set.

    Args:
        event: of the engine.
        resolved: which model answers.
        generation: what was asked for.

    Raises:
        TypeError: a failure is no message but a status.
    """
    message = pb.StreamGenerateResponse()
    match event:
        case Started():
            message.started.resolved_model.CopyFrom(resolved)
            message.started.request_id = generation.envelope.request_id
            message.started.prompt_tokens = event.prompt_tokens
            message.started.seed = event.seed
        case Waiting() | PrefillProgress():
            _tell_progress(event, message)
        case TextDelta():
            message.delta.sequence_index = event.sequence_index
            message.delta.text = event.text
            message.delta.channel = CHANNELS[event.channel]
            message.delta.token_count = event.token_count
            message.delta.tokens.extend(token_info(token) for token in event.tokens)
        case ToolCallDelta():
            message.tool_call.CopyFrom(tool_call_delta(event))
        case SequenceFinished():
            message.sequence_finished.sequence_index = event.sequence_index
            message.sequence_finished.finish.CopyFrom(finish(event))
        case Completed():
            message.completed.usage.CopyFrom(usage(event.usage, generation))
            message.completed.timing.CopyFrom(timing(event.timing))
        case Failed():
            raise TypeError("a failure is a status")
        case _:
            raise TypeError("no text comes of speech")
    return message


def _tell_progress(event: Waiting | PrefillProgress, message: pb.StreamGenerateResponse) -> None:
    if isinstance(event, Waiting):
        message.waiting.reason = pb.Waiting.REASON_QUEUED
        message.waiting.queue_position = event.place
    else:
        message.prefill_progress.processed_tokens = event.processed_tokens
        message.prefill_progress.total_tokens = event.total_tokens


def finish(event: SequenceFinished) -> pb.Finish:
    """Return why a sequence ended, and what matched."""
    finished = pb.Finish(reason=FINISH_REASONS[event.reason])
    if event.stop_string is not None:
        finished.stop_string = event.stop_string
    elif event.stop_token_id is not None:
        finished.stop_token_id = event.stop_token_id
    elif event.eos_token_id is not None:
        finished.eos_token_id = event.eos_token_id
    return finished


def tool_call_delta(event: ToolCallDelta) -> pb.ToolCallDelta:
    """Return a call of a tool as a stream tells it."""
    return pb.ToolCallDelta(
        sequence_index=event.sequence_index,
        call_index=event.call_index,
        id=event.id,
        name=event.name,
        arguments_json_delta=event.arguments_json,
    )


def tool_call(event: ToolCallDelta) -> pb.ToolCall:
    """Return a call of a tool as a whole answer tells it."""
    return pb.ToolCall(id=event.id, name=event.name, arguments_json=event.arguments_json)


def token_info(token: TokenDetail) -> pb.TokenInfo:
    """Return one token's id and bytes, and its log-probability and the alternatives where they were asked for."""
    alternatives = [pb.TokenAlternative(id=each.id, raw=each.raw, logprob=each.logprob) for each in token.alternatives]
    return pb.TokenInfo(id=token.id, raw=token.raw, logprob=token.logprob, alternatives=alternatives)


def min_bytes(text: str, tokens: Sequence[pb.TokenInfo]) -> int:
    """Return a number of bytes that a part of an answer takes in its message at least."""
    return len(text.encode()) + sum(token.ByteSize() + ELEMENT_BYTES for token in tokens)


def usage(counted: Usage, generation: Generation) -> common_pb2.Usage:
    """Return token counts; those of guesses and of what a constraint forced only where the request asked for either."""
    message = common_pb2.Usage(
        prompt_tokens=counted.prompt_tokens,
        completion_tokens=counted.completion_tokens,
        cached_prompt_tokens=counted.cached_prompt_tokens,
        reasoning_tokens=counted.reasoning_tokens,
    )
    if generation.shortcuts.max_draft_tokens:
        message.drafted_tokens = counted.drafted_tokens
        message.accepted_draft_tokens = counted.accepted_draft_tokens
    if generation.steering.has_force:
        message.forced_tokens = counted.forced_tokens
    return message


def timing(measured: Timing) -> common_pb2.Timing:
    """Return times in microseconds."""
    return common_pb2.Timing(
        queue_us=measured.queue_us,
        prefill_us=measured.prefill_us,
        decode_us=measured.decode_us,
        time_to_first_token_us=measured.time_to_first_token_us,
        total_us=measured.total_us,
    )
