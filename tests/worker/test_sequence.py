from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.detokenizer import Detokenizer
from worker.events import Alternative, FinishReason, SequenceFinished, TextDelta, TokenDetail
from worker.phases import PhaseClock
from worker.sequence import (
    Drawn,
    SamplingSettings,
    Sequence,
    State,
    StateOrderError,
    StoppingSettings,
    TextRequest,
    seed_of,
)

EOS = 200
SPECIAL = 201
GREETING = "ďábelské 👋"


def token_bytes(token_id: int) -> bytes:
    return b"" if token_id >= EOS else bytes([token_id])


def sequence(
    max_context_tokens: int = 1000, *, token_details: bool = False, top_logprobs: int | None = None, **stopping: object
) -> Sequence:
    settings = StoppingSettings(**{"max_tokens": 100, **stopping})  # pyright: ignore[reportArgumentType]
    request = TextRequest(
        "r1", (1, 2, 3), SamplingSettings(), settings, token_details=token_details, top_logprobs=top_logprobs
    )
    return Sequence(request, Detokenizer(token_bytes), max_context_tokens)


def of_pieces(pieces: Callable[[int], bytes], settings: StoppingSettings) -> Sequence:
    return Sequence(TextRequest("r1", (1,), SamplingSettings(), settings), Detokenizer(pieces), 1000)


def run(subject: Sequence, token_ids: list[int]) -> tuple[list[TextDelta], SequenceFinished | None]:
    deltas: list[TextDelta] = []
    for token_id in token_ids:
        advance = subject.advance(Drawn(token_id))
        deltas += [event for event in advance.events if isinstance(event, TextDelta)]
        if advance.finished is not None:
            return deltas, advance.finished
    return deltas, None


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_whole_code_points_stream_token_by_token():
    wide = {index: bytes([byte]) for index, byte in enumerate(GREETING.encode())}
    settings = StoppingSettings(max_tokens=len(wide))
    subject = of_pieces(lambda index: wide[index], settings)
    deltas, _ = run(subject, list(wide))
    assert [delta.text for delta in deltas] == list(GREETING)


def test_a_cut_code_point_is_flushed_at_the_end_and_counted():
    subject = of_pieces(lambda _: b"\xf0", StoppingSettings(2))
    deltas, finished = run(subject, [0, 0])
    assert text_of(deltas) == "\ufffd\ufffd"
    assert finished == SequenceFinished(FinishReason.MAX_TOKENS)


def test_the_end_of_sequence_ends_it_and_adds_no_text():
    deltas, finished = run(sequence(eos_token_ids=frozenset({EOS, SPECIAL})), [97, SPECIAL])
    assert text_of(deltas) == "a"
    assert finished == SequenceFinished(FinishReason.EOS, eos_token_id=SPECIAL)


def test_without_ids_the_end_of_sequence_is_a_token_like_others():
    deltas, finished = run(sequence(), [97, EOS, 98])
    assert text_of(deltas) == "ab"
    assert finished is None


def test_a_stop_id_ends_it_without_its_text():
    deltas, finished = run(sequence(stop_token_ids=frozenset({98})), [97, 98])
    assert text_of(deltas) == "a"
    assert finished == SequenceFinished(FinishReason.STOP, stop_token_id=98)


def test_a_stop_id_shows_its_text_on_request():
    deltas, _ = run(sequence(stop_token_ids=frozenset({98}), include_stop_in_output=True), [97, 98])
    assert text_of(deltas) == "ab"


def test_a_stop_string_across_tokens_is_found_and_hidden():
    deltas, finished = run(sequence(stop_strings=("bc",)), [97, 98, 99])
    assert text_of(deltas) == "a"
    assert finished == SequenceFinished(FinishReason.STOP, stop_string="bc")


def test_a_stop_string_shows_on_request():
    deltas, _ = run(sequence(stop_strings=("bc",), include_stop_in_output=True), [97, 98, 99])
    assert text_of(deltas) == "abc"


def test_a_stop_string_within_code_points_is_found():
    wide = {0: "x👋"[:1].encode() + b"\xf0\x9f", 1: b"\x91\x8b" + b"y"}
    settings = StoppingSettings(max_tokens=9, stop_strings=("👋",))
    subject = of_pieces(lambda index: wide[index], settings)
    deltas, finished = run(subject, [0, 1])
    assert text_of(deltas) == "x"
    assert finished is not None
    assert finished.stop_string == "👋"


def test_held_text_is_flushed_when_the_sequence_ends_by_itself():
    deltas, finished = run(sequence(stop_strings=("abcd",), eos_token_ids=frozenset({EOS})), [97, 98, 99, EOS])
    assert text_of(deltas) == "abc"
    assert finished is not None
    assert finished.reason is FinishReason.EOS


def test_max_tokens_ends_it():
    _, finished = run(sequence(max_tokens=2), [97, 98, 99])
    assert finished == SequenceFinished(FinishReason.MAX_TOKENS)


def test_the_context_ends_it():
    subject = sequence(max_context_tokens=5)
    _, finished = run(subject, [97, 98, 99])
    assert finished == SequenceFinished(FinishReason.CONTEXT_LENGTH)
    assert (subject.token_limit, subject.max_tokens, len(subject.output_ids)) == (2, 5, 2)


def test_it_knows_that_the_token_on_the_device_is_the_last():
    subject = sequence(max_tokens=2)
    assert not subject.is_last_token_pending()
    subject.advance(Drawn(97))
    assert subject.is_last_token_pending()


def test_token_details_come_with_each_token_even_when_text_is_held():
    deltas, _ = run(sequence(stop_strings=("ax",), token_details=True, eos_token_ids=frozenset({EOS})), [97, EOS])
    assert [(delta.text, delta.tokens) for delta in deltas] == [
        ("", (TokenDetail(97, b"a"),)),
        ("a", (TokenDetail(EOS, b""),)),
    ]


def test_log_probabilities_come_with_the_bytes_of_what_could_have_been():
    subject = sequence(top_logprobs=2)
    advance = subject.advance(Drawn(97, -0.5, ((98, -0.2), (EOS, -3.0))))
    assert advance.events[0] == TextDelta(
        "a", (TokenDetail(97, b"a", -0.5, (Alternative(98, b"b", -0.2), Alternative(EOS, b"", -3.0))),), 1
    )


def test_without_a_request_for_either_there_are_no_details():
    assert sequence().advance(Drawn(97, -0.5, ((98, -0.2),))).events == (TextDelta("a", (), 1),)


# Before the least number of tokens.


@pytest.mark.parametrize(
    "ends",
    [{"eos_token_ids": frozenset({98})}, {"stop_token_ids": frozenset({98})}, {"stop_strings": ("b",)}],
    ids=["end of sequence", "stop id", "stop string"],
)
def test_before_the_least_number_of_tokens_nothing_ends_it(ends: dict[str, Any]):
    deltas, finished = run(sequence(min_tokens=3, **ends), [98, 98, 97])
    assert (text_of(deltas), finished) == ("bba", None)
    deltas, finished = run(sequence(min_tokens=3, **ends), [98, 97, 98, 97])
    assert text_of(deltas) == "ba"
    assert finished is not None


def test_a_stop_string_that_began_before_the_least_number_of_tokens_ends_it_after():
    deltas, finished = run(sequence(min_tokens=2, stop_strings=("abc",)), [97, 98, 99])
    assert text_of(deltas) == ""
    assert finished == SequenceFinished(FinishReason.STOP, stop_string="abc")


def test_text_that_could_only_have_been_a_stop_string_too_early_is_not_held():
    deltas, _ = run(sequence(min_tokens=5, stop_strings=("ab",)), [97, 98, 120])
    assert [delta.text for delta in deltas] == ["ab", "x"]


def test_the_most_tokens_win_over_the_least():
    _, finished = run(sequence(min_tokens=9, max_tokens=2), [97, 98, 99])
    assert finished == SequenceFinished(FinishReason.MAX_TOKENS)


# Several of one request.


def test_each_sequence_tells_which_it_is():
    request = TextRequest("r1", (1,), SamplingSettings(), StoppingSettings(1), num_sequences=3)
    advance = Sequence(request, Detokenizer(token_bytes), 1000, index=2).advance(Drawn(97))
    assert advance.events[0] == TextDelta("a", (), 1, 2)
    assert advance.finished == SequenceFinished(FinishReason.MAX_TOKENS, sequence_index=2)


def test_the_seeds_of_a_request_differ_and_the_first_is_its_own():
    seeds = [seed_of(7, index) for index in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 1 << 64 for seed in [*seeds, seed_of((1 << 64) - 1, 99)])


@given(st.lists(st.integers(97, 101), min_size=1, max_size=20), st.lists(st.text("abcde", min_size=1), max_size=3))
def test_token_counts_of_the_deltas_add_up(token_ids: list[int], stops: list[str]):
    subject = sequence(stop_strings=tuple(stops), max_tokens=len(token_ids))
    deltas, finished = run(subject, token_ids)
    assert finished is not None
    assert sum(delta.token_count for delta in deltas) == len(subject.output_ids)


def at_once(text: str, stops: list[str]) -> str:
    """Cut a whole text where the first stop string is complete, before the longest that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(
    st.lists(st.one_of(st.sampled_from(["a", "b", "č", "👋"]).map(str.encode), st.binary(max_size=2)), max_size=12),
    st.lists(st.text("abč👋", min_size=1, max_size=3), max_size=4),
    st.data(),
)
def test_deltas_joined_equal_the_text_computed_at_once(parts: list[bytes], stops: list[str], data: st.DataObject):
    whole = b"".join(parts)
    borders = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=10)))
    tokens = [whole[start:end] for start, end in zip([0, *borders], [*borders, len(whole)], strict=True)]
    settings = StoppingSettings(len(tokens), stop_strings=tuple(stops))
    subject = of_pieces(lambda index: tokens[index], settings)
    deltas, _ = run(subject, list(range(len(tokens))))
    assert text_of(deltas) == at_once(whole.decode("utf-8", "replace"), stops)


def test_states_follow_each_other_in_order():
    subject = sequence()
    for state in (State.PREFILLING, State.DECODING, State.PAUSED, State.DECODING, State.ENDED):
        subject.move(state)
    with pytest.raises(StateOrderError):
        subject.move(State.DECODING)


def test_a_queued_sequence_cannot_decode():
    with pytest.raises(StateOrderError):
        sequence().move(State.DECODING)


def test_phases_add_up_to_the_whole():
    timing = PhaseClock(submitted=1.0, started=1.5, first_token=2.5).timing(4.0)
    assert (timing.queue_us, timing.prefill_us, timing.decode_us) == (500_000, 1_000_000, 1_500_000)
    assert (timing.time_to_first_token_us, timing.total_us) == (1_500_000, 3_000_000)


def test_a_request_that_never_ran_only_queued():
    timing = PhaseClock(submitted=1.0).timing(2.0)
    assert (timing.queue_us, timing.prefill_us, timing.decode_us, timing.total_us) == (1_000_000, 0, 0, 1_000_000)
