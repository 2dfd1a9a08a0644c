"""What a worker says whose mapped weights are gone, as its gateway reads it."""

from gateway.errors import CheckpointCorrupt
from gateway.supervisor import _failure_in  # pyright: ignore[reportPrivateUsage]
from worker.lost_pages import EXIT_LOAD_FAILED, last_words
from worker.server import EXIT_LOAD_FAILED as EXIT_OF_A_FAILED_LOAD

MOST_BYTES = 1000


def test_it_ends_as_a_load_that_fails() -> None:
    assert EXIT_LOAD_FAILED == EXIT_OF_A_FAILED_LOAD


def test_the_gateway_reads_a_corrupt_checkpoint_in_its_last_words() -> None:
    failure = _failure_in("moe", ("something", last_words()))
    assert isinstance(failure, CheckpointCorrupt)
    assert "experts.pack: cannot be read where it is mapped" in str(failure)


def test_its_last_words_are_short_enough_for_a_signal_handler() -> None:
    assert len(last_words().encode()) <= MOST_BYTES
    assert "\n" not in last_words()
