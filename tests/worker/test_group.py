"""What the sequences of one request have in common."""

import pytest

from models.layers.cache import Cache
from models.registry import LoadedModel
from tests.models.stepping import prefill
from tests.worker.text_engines import request
from tests.worker.text_rows import row, sequence
from worker.events import Usage
from worker.group import SequenceGroup
from worker.job import Job
from worker.outbox import Outbox
from worker.row import Row
from worker.sequence import Drawn, Sequence, State

PROMPT = tuple(range(70))
BLOCK_BYTES = 2 * 2 * 2 * 16 * 4 * 32  # layers, keys and values, heads, width, float32, tokens


def group(cache: Cache, num_sequences: int = 3) -> SequenceGroup:
    wanted = request(prompt=PROMPT, num_sequences=num_sequences)
    rows: list[Row] = []
    for index in range(num_sequences):
        leader = rows[0].sequence if rows else None
        rows.append(Row(sequence(wanted, index, leader), cache, lambda: row(cache, wanted).sampler))
    return SequenceGroup(Job(wanted, Outbox(100), submitted=5.0), rows)


def sequences(subject: SequenceGroup) -> list[Sequence]:
    return [each.sequence for each in subject.rows]


def reach(subject: Sequence, state: State) -> None:
    for each in (State.PREFILLING, State.DECODING, State.PAUSED):
        if subject.state is not state:
            subject.move(each)


@pytest.fixture
def cache(loaded: LoadedModel) -> Cache:
    return loaded.make_cache(3)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ((State.QUEUED, State.QUEUED, State.QUEUED), State.QUEUED),
        ((State.PREFILLING, State.QUEUED, State.QUEUED), State.PREFILLING),
        ((State.DECODING, State.PREFILLING, State.QUEUED), State.DECODING),
        ((State.PAUSED, State.PREFILLING, State.QUEUED), State.PAUSED),
        ((State.ENDED, State.PREFILLING, State.QUEUED), State.PREFILLING),
        ((State.ENDED, State.ENDED, State.QUEUED), State.QUEUED),
        ((State.ENDED, State.ENDED, State.ENDED), State.ENDED),
    ],
    ids=str,
)
def test_it_is_as_far_as_the_first_of_those_that_go_on(cache: Cache, states: tuple[State, ...], state: State):
    subject = group(cache)
    for each, wanted in zip(sequences(subject), states, strict=True):
        if wanted is State.ENDED:
            each.move(State.ENDED)
        else:
            reach(each, wanted)
    assert subject.state is state
    assert subject.is_complete is (state is State.ENDED)


def test_it_counts_the_prompt_once_and_all_outputs(cache: Cache):
    subject = group(cache)
    assert subject.usage == Usage(70)
    for number, each in enumerate(sequences(subject), 1):
        for _ in range(number):
            each.advance(Drawn(97))
        each.num_drafted, each.num_accepted = 2 * number, number
    subject.num_cached = 64
    assert subject.usage == Usage(70, 6, 64, 12, 6)


def test_the_start_is_that_of_the_first_sequence(cache: Cache):
    subject = group(cache)
    leader, follower, _ = sequences(subject)
    leader.prefilled = 32
    subject.note_start(leader, 7.0)
    follower.prefilled = 64
    subject.note_start(follower, 9.0)
    assert (subject.num_cached, subject.clock.submitted, subject.clock.started) == (32, 5.0, 7.0)


def test_a_row_is_found_by_its_sequence(cache: Cache):
    subject = group(cache)
    assert [subject.row(each) for each in sequences(subject)] == subject.rows


def test_the_prompt_is_kept_until_the_last_sequence_has_started(loaded: LoadedModel, cache: Cache):
    subject = group(cache)
    leader, second, third = sequences(subject)
    prefill(loaded, cache, PROMPT, 512)
    leader.slot = 0
    subject.share(cache, 0)
    cache.release(0)
    assert len(subject.shared) == 2
    assert cache.nbytes == 2 * BLOCK_BYTES
    second.slot = 1
    subject.note_start(second, 1.0)
    assert cache.nbytes == 2 * BLOCK_BYTES
    leader.slot = None
    leader.move(State.ENDED)
    third.slot = 0
    subject.note_start(third, 1.0)
    assert (subject.shared, cache.nbytes) == ([], 0)


def test_one_sequence_keeps_nothing(loaded: LoadedModel, cache: Cache):
    subject = group(cache, 1)
    prefill(loaded, cache, PROMPT, 512)
    subject.share(cache, 0)
    cache.release(0)
    assert (subject.shared, cache.nbytes) == ([], 0)
