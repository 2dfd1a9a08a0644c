"""How often experts were needed, and what of it outlives a process."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.experts.usage import (
    DECAY_SELECTIONS,
    LEAST_GAIN,
    LEAST_SELECTIONS,
    MAX_COUNT,
    MAX_SWAPS,
    SAVE_INTERVAL_S,
    SURE_SELECTIONS,
    UsageLedger,
)


@given(st.lists(st.tuples(st.integers(0, 2), st.dictionaries(st.integers(0, 4), st.integers(1, 1000))), max_size=20))
def test_outlives_the_process(
    tmp_path_factory: pytest.TempPathFactory, notes: list[tuple[int, dict[int, int]]]
) -> None:
    path = tmp_path_factory.mktemp("usage") / "usage"
    ledger = UsageLedger(path, 3, 5)
    for layer, selections in notes:
        ledger.note(layer, selections)
    ledger.save()
    again = UsageLedger(path, 3, 5)
    assert again.total == ledger.total == sum(sum(selections.values()) for _, selections in notes)
    assert all(again.hottest(layer, 5) == ledger.hottest(layer, 5) for layer in range(3))


def test_a_line_is_layer_expert_and_count(tmp_path: Path) -> None:
    path = tmp_path / "new" / "usage"
    ledger = UsageLedger(path, 2, 4)
    ledger.note(1, {3: 7, 0: 2})
    ledger.save()
    assert path.read_text() == "1 0 2\n1 3 7\n"
    assert [file.name for file in path.parent.iterdir()] == ["usage"]


def test_a_pipe_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "usage")
    assert UsageLedger(tmp_path / "usage", 2, 8).total == 0
    assert "starts anew" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"0 0", b"0 0 x\n", b"0 0 1 1\n", b"2 0 1\n", b"0 4 1\n", b"0 0 -1\n", b"0 0 4294967296\n", b"\xff\n"],
)
def test_a_file_that_is_none_starts_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage"
    path.write_bytes(content)
    ledger = UsageLedger(path, 2, 4)
    assert ledger.total == 0
    assert "starts anew" in caplog.text
    ledger.note(0, {1: 5})
    ledger.save()
    assert UsageLedger(path, 2, 4).count(0, 1) == 5


def test_a_folder_in_its_place_costs_nothing_but_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = UsageLedger(tmp_path, 2, 4)
    ledger.note(0, {1: 5})
    ledger.save()
    assert "is not kept" in caplog.text
    assert ledger.count(0, 1) == 5
    assert not list(tmp_path.parent.glob("*.tmp"))


def test_a_write_that_breaks_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "usage"
    ledger = UsageLedger(path, 1, 2)
    ledger.note(0, {0: 1})
    ledger.save()

    def broken(_: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", broken)
    ledger.note(0, {0: 1})
    ledger.save()
    assert UsageLedger(path, 1, 2).count(0, 0) == 1
    monkeypatch.undo()
    ledger.save()
    assert UsageLedger(path, 1, 2).count(0, 0) == 2


def test_counts_saturate(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text(f"0 0 {MAX_COUNT - 1}\n")
    ledger = UsageLedger(path, 1, 2)
    ledger.note(0, {0: 5})
    assert ledger.count(0, 0) == MAX_COUNT // 2  # and then all were halved


def test_all_are_halved_in_time() -> None:
    ledger = UsageLedger(None, 1, 2)
    ledger.note(0, {0: DECAY_SELECTIONS - 5, 1: 4})
    ledger.note(0, {1: 2})
    assert (ledger.count(0, 0), ledger.count(0, 1)) == ((DECAY_SELECTIONS - 5) // 2, 3)
    assert ledger.total == ledger.count(0, 0) + 3


def test_few_selections_pin_nothing_and_many_at_most_half() -> None:
    ledger = UsageLedger(None, 1, 4)
    ledger.note(0, {0: LEAST_SELECTIONS - 1})
    assert ledger.num_pinned(100) == 0
    ledger.note(0, {1: SURE_SELECTIONS // 2 - LEAST_SELECTIONS + 1})
    assert ledger.num_pinned(100) == 25
    ledger.note(0, {2: SURE_SELECTIONS})
    assert ledger.num_pinned(100) == 50
    assert ledger.num_pinned(1) == 0


def test_the_hottest_come_first_and_what_was_never_used_not_at_all() -> None:
    ledger = UsageLedger(None, 2, 5)
    ledger.note(1, {4: 2, 1: 9, 3: 2})
    assert ledger.hottest(1, 2) == [1, 3]
    assert ledger.hottest(1, 5) == [1, 3, 4]
    assert ledger.hottest(0, 5) == []


def test_is_due_every_ten_minutes(tmp_path: Path) -> None:
    now = 100.0
    ledger = UsageLedger(tmp_path / "usage", 1, 1, clock=lambda: now)
    ledger.note(0, {0: 1})
    now += SAVE_INTERVAL_S - 1
    assert not ledger.is_due
    now += 1
    assert ledger.is_due
    ledger.save()
    assert not ledger.is_due


def test_pinned_experts_give_way_to_those_that_are_needed_much_more() -> None:
    ledger = UsageLedger(None, 2, 4)
    ledger.note(0, {0: 1000, 1: 1000 + 250 + LEAST_GAIN, 2: 5})
    ledger.note(1, {0: 10, 1: 9000, 2: 7000, 3: 8000})
    assert ledger.swaps([{0}, {1, 3}]) == []
    assert ledger.swaps([{0}, {0, 2}]) == [(1, 0, 1)]
    ledger.note(0, {1: 1})
    assert ledger.swaps([{0}, {0, 2}]) == [(1, 0, 1), (0, 0, 1)]
    assert ledger.swaps([set(), set()]) == []


def test_few_give_way_at_once_and_those_first_that_gain_most() -> None:
    ledger = UsageLedger(None, 3, 4)
    for layer in range(3):
        ledger.note(layer, {0: 1, 1: 2, 2: 10_000 * (layer + 1), 3: 20_000 * (layer + 1)})
    found = ledger.swaps([{0, 1}] * 3)
    assert found == [(2, 0, 3), (1, 0, 3), (2, 1, 2), (0, 0, 3)]
    assert len(found) == MAX_SWAPS
