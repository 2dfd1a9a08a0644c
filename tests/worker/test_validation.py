"""Every field of a request changes something or is refused by its name, and every bound holds."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as pb

from worker import validation
from worker.errors import ConstraintInvalid, ContextTooLong, InvalidField, RequestError, UnsupportedOption
from worker.sequence import SamplingSettings
from worker.validation import (
    MAX_LOGIT_BIASES,
    MAX_SEQUENCES,
    MAX_TOP_LOGPROBS,
    Count,
    Generation,
    ModelFacts,
    Stopping,
    Streaming,
    TextPrompt,
    TokenPrompt,
    check_min_tokens,
    read_generation,
)

from .fields import ALL_FIELDS, named, set_field
from .specs import MODEL, base, generation, read


def outcome(message: Any) -> Any:
    try:
        return read(message)
    except RequestError as error:
        return error


def prepared(kind: type[Any], path: tuple[FieldDescriptor, ...]) -> Any:
    """Return a valid request in which the field's own surroundings exist."""
    message = base(kind)
    names = [field.name for field in path[:-1]]
    if "chat" in names:
        holder = message if kind is pb.CountTokensRequest else message.spec
        parts = [pb.ContentPart(text="a")] if "parts" in names else []
        calls = [pb.ToolCall(id="c", name="f", arguments_json="{}")] if "tool_calls" in names else []
        holder.chat.messages.add(role=pb.ROLE_ASSISTANT, parts=parts, tool_calls=calls)
        if "tools" in names:
            holder.chat.tools.add(name="t")
    if "token_ids" in names:
        message.spec.token_ids.ids.append(1)
    if "adapters" in names:
        message.adapters.add(adapter="a")
    return message


def clean(path_text: str) -> str:
    """Take indices and keys out of a path."""
    return "".join(part.rpartition("]")[2] for part in path_text.split("["))


@pytest.mark.parametrize(
    ("kind", "path"), ALL_FIELDS, ids=lambda value: named(value) if isinstance(value, tuple) else value.__name__
)
def test_every_field_changes_something_or_is_refused_by_name(
    kind: type[Any], path: tuple[FieldDescriptor, ...]
) -> None:
    message = prepared(kind, path)
    before = outcome(message)
    assert not isinstance(before, RequestError)

    set_field(message, path)
    after = outcome(message)

    if isinstance(after, RequestError):
        assert isinstance(after, InvalidField | UnsupportedOption | ConstraintInvalid)
        field = clean(after.field)
        assert named(path) == field or named(path).startswith(f"{field}.") or field.startswith(f"{named(path)}.")
    else:
        assert after != before or named(path) in CONTAINERS


# Messages that say nothing by themselves; their fields are walked on their own.
CONTAINERS = {
    "spec",
    "spec.chat.tool_choice",
    "chat.tool_choice",
    "spec.sampling",
    "spec.stopping",
    "spec.output",
    "spec.cache",
    "spec.speculation",
    "stream_options",
}


def test_the_walk_finds_the_fields() -> None:
    names = {named(path) for _, path in ALL_FIELDS}
    assert {"spec.chat.messages.parts.media.data", "stream_options.waiting_events", "return_token_ids"} <= names
    assert len(ALL_FIELDS) > 150


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1, 100], [-0.1, 100.5, math.nan, math.inf, -math.inf]),
        ("top_p", [0.01, 1], [0, -0.1, 1.1, math.nan]),
        ("top_k", [0, 1, 2**31 - 1], [-1]),
        ("min_p", [0, 1], [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0.1, 1, 100], [0, -1, 101, math.nan, math.inf]),
        ("frequency_penalty", [-100, 100], [101, math.nan, math.inf]),
        ("presence_penalty", [-100, 100], [-101, math.nan, -math.inf]),
        ("penalty_window", [0, 20, 2**32 - 1], []),
        ("seed", [0, 2**64 - 1], []),
        ("num_sequences", [1, MAX_SEQUENCES], [0, MAX_SEQUENCES + 1]),
        ("xtc_probability", [0, 1], [-0.1, 1.1, math.nan]),
        ("xtc_threshold", [0, 0.5], [-0.1, 0.6, math.nan]),
    ],
)
def test_sampling_values_have_bounds(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        made = generation(pb.GenerationSpec(sampling=pb.SamplingParams(**{name: value})))
        holder = made if name in {"seed", "num_sequences"} else made.sampling
        assert getattr(holder, name) == pytest.approx(value)
    for value in bad:
        with pytest.raises(InvalidField) as raised:
            generation(pb.GenerationSpec(sampling=pb.SamplingParams(**{name: value})))
        assert raised.value.field == f"spec.sampling.{name}"


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("top_k", -1, "from 0 to 2147483647"),
        ("xtc_threshold", 0.6, "from 0 to 0.5"),
        ("temperature", -1, "from 0 to 100"),
    ],
)
def test_bounds_are_told_in_plain_numbers(name: str, bad: float, words: str) -> None:
    sampling = pb.SamplingParams()
    setattr(sampling, name, bad)
    with pytest.raises(InvalidField, match=f"{name}: {words}$"):
        generation(pb.GenerationSpec(sampling=sampling))


def test_a_model_may_make_fewer_sequences_than_others() -> None:
    body = base(pb.GenerateRequest, spec=pb.GenerationSpec(sampling=pb.SamplingParams(num_sequences=5)))
    narrow = ModelFacts(100, 50, max_sequences=4)
    with pytest.raises(InvalidField, match=r"spec\.sampling\.num_sequences: from 1 to 4"):
        read_generation(body.SerializeToString(), pb.GenerateRequest, narrow)


@pytest.mark.parametrize("count", [0, MAX_TOP_LOGPROBS])
def test_log_probabilities_bring_the_tokens_they_are_of(count: int) -> None:
    made = generation(pb.GenerationSpec(output=pb.OutputOptions(top_logprobs=count)))
    assert (made.top_logprobs, made.token_details) == (count, True)


def test_log_probabilities_are_for_those_who_ask() -> None:
    made = generation(pb.GenerationSpec(output=pb.OutputOptions(token_ids=True)))
    assert (made.top_logprobs, made.token_details) == (None, True)


def test_log_probabilities_have_a_bound() -> None:
    with pytest.raises(InvalidField, match=r"spec\.output\.top_logprobs: from 0 to 20"):
        generation(pb.GenerationSpec(output=pb.OutputOptions(top_logprobs=MAX_TOP_LOGPROBS + 1)))


@pytest.mark.parametrize(
    ("biases", "path"),
    [
        ({100: 1.0}, "spec.sampling.logit_bias[100]"),
        ({1: 1000.5}, "spec.sampling.logit_bias[1]"),
        ({1: math.nan}, "spec.sampling.logit_bias[1]"),
        (dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 0.0), "spec.sampling.logit_bias"),
    ],
)
def test_logit_biases_have_bounds(biases: dict[int, float], path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(sampling=pb.SamplingParams(logit_bias=biases)))
    assert raised.value.field == path


@pytest.mark.parametrize(
    ("stopping", "path"),
    [
        (pb.StoppingParams(max_tokens=0), "max_tokens"),
        (pb.StoppingParams(max_tokens=4, min_tokens=5), "min_tokens"),
        (pb.StoppingParams(stop_strings=["x"] * 17), "stop_strings"),
        (pb.StoppingParams(stop_strings=["x", ""]), "stop_strings[1]"),
        (pb.StoppingParams(stop_strings=["é" * 129]), "stop_strings[0]"),
        (pb.StoppingParams(stop_token_ids=[1] * 65), "stop_token_ids"),
        (pb.StoppingParams(stop_token_ids=[1, 100]), "stop_token_ids[1]"),
    ],
)
def test_stop_conditions_have_bounds(stopping: pb.StoppingParams, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(pb.GenerationSpec(stopping=stopping))
    assert raised.value.field == f"spec.stopping.{path}"


def test_stop_conditions_are_taken_over() -> None:
    asked = pb.StoppingParams(
        max_tokens=5,
        min_tokens=5,
        stop_strings=["a", "é" * 128],
        stop_token_ids=[7, 8],
        ignore_eos=True,
        include_stop_in_output=True,
    )
    assert generation(pb.GenerationSpec(stopping=asked)).stopping == Stopping(
        5, 5, ("a", "é" * 128), frozenset({7, 8}), ignore_eos=True, include_stop_in_output=True
    )


def test_what_is_not_said_is_the_models_default() -> None:
    model = ModelFacts(100, 50, SamplingSettings(temperature=0.3, top_k=7), max_tokens=9)
    spec = pb.GenerationSpec(prompt="x", sampling=pb.SamplingParams(top_k=0))
    body = pb.GenerateRequest(model="m", request_id="r", spec=spec).SerializeToString()

    made = read_generation(body, pb.GenerateRequest, model)

    assert made.sampling == SamplingSettings(temperature=0.3, top_k=0)
    assert made.stopping.max_tokens == 9
    assert made.seed is None


def test_the_least_output_is_no_more_than_the_models_own_limit() -> None:
    body = base(pb.GenerateRequest, spec=pb.GenerationSpec(stopping=pb.StoppingParams(min_tokens=10)))
    with pytest.raises(InvalidField, match=r"spec\.stopping\.min_tokens: at most max_tokens, which is 9"):
        read_generation(body.SerializeToString(), pb.GenerateRequest, ModelFacts(100, 50, max_tokens=9))


def test_the_least_output_has_to_fit_behind_the_prompt() -> None:
    asked = generation(pb.GenerationSpec(stopping=pb.StoppingParams(min_tokens=10))).stopping
    check_min_tokens(40, asked, MODEL)
    with pytest.raises(InvalidField, match=r"spec\.stopping\.min_tokens: the prompt leaves room for 9 tokens"):
        check_min_tokens(41, asked, MODEL)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (pb.GenerationSpec(prompt=""), "spec.prompt"),
        (pb.GenerationSpec(token_ids=common_pb2.TokenIds()), "spec.token_ids.ids"),
        (pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[5, 100])), "spec.token_ids.ids[1]"),
        (pb.GenerationSpec(chat=pb.ChatInput()), "spec.chat.messages"),
    ],
)
def test_an_empty_or_impossible_prompt_is_refused(spec: pb.GenerationSpec, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        generation(spec)
    assert raised.value.field == path


def test_a_request_without_any_input_is_refused() -> None:
    with pytest.raises(InvalidField) as raised:
        read(pb.GenerateRequest(model="m", request_id="r"))
    assert raised.value.field == "spec"
    with pytest.raises(InvalidField):
        read(pb.CountTokensRequest(model="m", request_id="r"))


class Unwalked(Sequence[int]):
    """Ids that can be counted but not looked at."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("walked")


def test_token_ids_are_measured_before_they_are_walked() -> None:
    with pytest.raises(ContextTooLong) as raised:
        validation._read_token_ids(Unwalked(50), MODEL)
    assert raised.value.metadata["prompt_tokens"] == "50"
    with pytest.raises(AssertionError, match="walked"):
        validation._read_token_ids(Unwalked(49), MODEL)
    assert generation(pb.GenerationSpec(token_ids=common_pb2.TokenIds(ids=[99] * 49))).prompt == TokenPrompt(
        "spec.token_ids.ids", (99,) * 49
    )


@pytest.mark.parametrize("request_id", ["", "x" * 65, "tab\t", "schön", "\x7f"])
def test_a_request_id_has_a_bound(request_id: str) -> None:
    message = base(pb.GenerateRequest)
    message.request_id = request_id
    with pytest.raises(InvalidField, match="request_id"):
        read(message)


@pytest.mark.parametrize("priority", [-129, 128, 2**31 - 1])
def test_a_priority_has_a_bound(priority: int) -> None:
    with pytest.raises(InvalidField, match="priority"):
        read(base(pb.CountTokensRequest, priority=priority))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (pb.StreamOptions(coalesce_tokens=4097), "coalesce_tokens"),
        (pb.StreamOptions(coalesce_interval=Duration(seconds=11)), "coalesce_interval"),
        (pb.StreamOptions(coalesce_interval=Duration(nanos=-1)), "coalesce_interval"),
    ],
)
def test_stream_options_have_bounds(options: pb.StreamOptions, path: str) -> None:
    with pytest.raises(InvalidField) as raised:
        read(base(pb.StreamGenerateRequest, stream_options=options))
    assert raised.value.field == f"stream_options.{path}"


def test_stream_options_are_taken_over() -> None:
    options = pb.StreamOptions(
        coalesce_tokens=4, coalesce_interval=Duration(nanos=20_000_000), prefill_progress=True, waiting_events=True
    )
    made = read(base(pb.StreamGenerateRequest, stream_options=options))
    assert isinstance(made, Generation)
    assert made.streaming == Streaming(4, 0.02, prefill_progress=True, waiting_events=True)


def test_a_count_takes_text_and_chat() -> None:
    counted = read(base(pb.CountTokensRequest, prompt="ab", return_token_ids=True))
    assert isinstance(counted, Count)
    assert (counted.prompt, counted.return_token_ids) == (TextPrompt("prompt", "ab"), True)
