"""Notes of what was pulled, made by several at once."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.hub import pulled
from gateway.hub.pulled import Pulled, forget, read_pulled, remember

COUNT = 40


def test_pulls_that_end_at_once_are_all_noted(tmp_path: Path) -> None:
    models = [Pulled(f"m{number}", "c0ffee") for number in range(COUNT)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda model: remember(tmp_path, model), models))
    assert sorted(read_pulled(tmp_path), key=lambda one: int(one.name[1:])) == models
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda model: forget(tmp_path, model.name), models))
    assert read_pulled(tmp_path) == []


def test_a_folder_that_another_keeps_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulled, "LOCK_LIMIT_S", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            remember(tmp_path, Pulled("m", "c0ffee"))
    finally:
        os.close(held)
    remember(tmp_path, Pulled("m", "c0ffee"))
    assert read_pulled(tmp_path) == [Pulled("m", "c0ffee")]
