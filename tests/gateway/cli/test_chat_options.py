"""`chat` with several answers, log-probabilities, and what spares the server work."""

import json

import grpc
import pytest
from pomona.v1 import generation_pb2 as g

from gateway.cli import generation, sampling
from tests.support.scripted_server import Fail, ScriptedServer, Step, answer
from worker import validation
from worker.shortcuts import MAX_DRAFT_TOKENS

from .conftest import Run


def delta(index: int, text: str) -> g.StreamGenerateResponse:
    return g.StreamGenerateResponse(
        delta=g.TokenDelta(sequence_index=index, text=text, channel=g.CHANNEL_CONTENT, token_count=1)
    )


def finished(index: int, reason: g.FinishReason.ValueType = g.FINISH_REASON_EOS) -> g.StreamGenerateResponse:
    ended = g.SequenceFinished(sequence_index=index, finish=g.Finish(reason=reason))
    return g.StreamGenerateResponse(sequence_finished=ended)


def started() -> g.StreamGenerateResponse:
    return g.StreamGenerateResponse(started=g.GenerationStarted(request_id="r1", prompt_tokens=7, seed=1))


def completed(**usage: int) -> g.StreamGenerateResponse:
    event = g.StreamGenerateResponse(completed=g.GenerationCompleted())
    for name, count in {"prompt_tokens": 7, **usage}.items():
        setattr(event.completed.usage, name, count)
    event.completed.timing.decode_us = 500_000
    return event


def two_answers() -> list[Step]:
    return [
        started(),
        delta(0, "Red"),
        delta(1, "Gre"),
        delta(1, "en\n"),
        finished(1, g.FINISH_REASON_MAX_TOKENS),
        delta(0, "dish"),
        finished(0),
        completed(completion_tokens=4),
    ]


def test_options_are_written_into_their_fields_and_nothing_else(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    options = ("-n", "2", "--min-tokens", "3", "--logprobs", "4", "--speculate", "5", "--no-prefix-cache")
    run("chat", "m", "Why?", *options)
    request = g.StreamGenerateRequest(model="m")
    request.spec.chat.messages.add(role=g.ROLE_USER, text="Why?")
    request.spec.sampling.num_sequences = 2
    request.spec.stopping.min_tokens = 3
    request.spec.output.top_logprobs = 4
    request.spec.speculation.MergeFrom(g.SpeculationOptions(enabled=True, max_draft_tokens=5))
    request.spec.cache.bypass_prefix_cache = True
    assert server.call("StreamGenerate").request == request


def test_options_that_are_not_given_leave_no_trace(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?")
    spec = server.call("StreamGenerate").request.spec
    assert not any(spec.HasField(name) for name in ("sampling", "stopping", "output", "cache", "speculation"))


def test_guesses_can_be_switched_off(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = answer("a")
    run("chat", "m", "Why?", "--speculate", "0")
    spec = server.call("StreamGenerate").request.spec
    assert spec.speculation == g.SpeculationOptions(enabled=False, max_draft_tokens=0)


@pytest.mark.parametrize(
    ("option", "value", "bounds"),
    [
        ("--sequences", "0", "within 1 to 16"),
        ("--min-tokens", "4294967296", "within 0 to 4294967295"),
        ("--logprobs", "21", "within 0 to 20"),
        ("--speculate", "11", "within 0 to 10"),
        ("--seed", str(2**64), "within 0 to 18446744073709551615"),
        ("--temperature", "nan", "within 0 to 100"),
        ("--top-p", "0", "above 0, at most 1"),
        ("--presence-penalty", "-101", "within -100 to 100"),
        ("--logit-bias", "3=1001", "within -1000 to 1000"),
    ],
)
def test_number_that_the_contract_rules_out_is_a_usage_error(
    server: ScriptedServer, run: Run, option: str, value: str, bounds: str
) -> None:
    result = run("chat", "m", "Why?", option, value)
    assert (result.exit_code, result.stderr, server.calls) == (2, f"error: {option}: not {bounds}\n", [])


def test_ranges_are_those_of_a_worker() -> None:
    assert {name: sampling.RANGES[name] for name in validation.SAMPLING_RANGES} == validation.SAMPLING_RANGES
    found = (sampling.MAX_SEQUENCES, sampling.MAX_BIAS, generation.MAX_LOGPROBS, generation.MAX_DRAFT_TOKENS)
    known = (validation.MAX_SEQUENCES, validation.MAX_LOGIT_BIAS, validation.MAX_TOP_LOGPROBS, MAX_DRAFT_TOKENS)
    assert found == known


def test_several_answers_come_one_below_the_other(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = two_answers()
    result = run("chat", "m", "Colour?", "-n", "2")
    assert result.stdout == "--- 1 of 2\nReddish\n--- 2 of 2\nGreen\n"
    assert result.stderr.startswith("[7 prompt tokens, 4 tokens, 4.0 tokens/s, first token after ")
    assert result.stderr.endswith("; 1 of 2 cut at the token limit]\n")


def test_several_answers_that_fail_keep_what_came_of_each(server: ScriptedServer, run: Run) -> None:
    broken = Fail(grpc.StatusCode.UNAVAILABLE, "it died", "WORKER_DIED")
    server.scripts["StreamGenerate"] = [*two_answers()[:4], broken]
    result = run("chat", "m", "Colour?", "-n", "3")
    assert (result.exit_code, result.stdout) == (1, "--- 1 of 3\nRed\n--- 2 of 3\nGreen\n")


def test_refused_number_of_answers_prints_none(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = [Fail(grpc.StatusCode.INVALID_ARGUMENT, "from 1 to 8", "INVALID_FIELD")]
    result = run("chat", "m", "Colour?", "-n", "16")
    assert (result.exit_code, result.stdout) == (1, "")


def with_logprobs() -> list[Step]:
    event = delta(0, "a\n")
    likely = [g.TokenAlternative(id=1, raw=b"a\n", logprob=-0.25), g.TokenAlternative(id=2, raw=b"\xff", logprob=-2.5)]
    event.delta.tokens.add(id=1, raw=b"a\n", logprob=-0.25, alternatives=likely)
    return [started(), event, finished(0), completed(completion_tokens=1)]


def test_log_probabilities_are_a_table_beside_the_answer(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = with_logprobs()
    result = run("chat", "m", "Why?", "--logprobs", "2")
    assert result.stdout == "a\n"
    header, row, _ = result.stderr.splitlines()
    assert header.split() == ["TOKEN", "LOGPROB", "CHANCE", "LIKELIEST"]
    assert row.split() == ['"a\\n"', "-0.250", "77.9%", '"a\\n"', "77.9%,", '"\N{REPLACEMENT CHARACTER}"', "8.2%"]


def test_program_reads_log_probabilities_in_the_events(server: ScriptedServer, run: Run) -> None:
    server.scripts["StreamGenerate"] = with_logprobs()
    result = run("chat", "m", "Why?", "--logprobs", "2", "--json")
    (token,) = json.loads(result.stdout.splitlines()[1])["delta"]["tokens"]
    assert (token["logprob"], [each["id"] for each in token["alternatives"]]) == (-0.25, [1, 2])
    assert "LOGPROB" not in result.stderr


def test_statistics_say_what_was_spared(server: ScriptedServer, run: Run) -> None:
    usage = {"completion_tokens": 1, "cached_prompt_tokens": 5, "drafted_tokens": 9, "accepted_draft_tokens": 8}
    server.scripts["StreamGenerate"] = [started(), delta(0, "a"), finished(0), completed(**usage)]
    result = run("chat", "m", "Why?", "--speculate", "3")
    assert result.stderr.endswith(", 5 prompt tokens cached, 8 of 9 guesses right]\n")
