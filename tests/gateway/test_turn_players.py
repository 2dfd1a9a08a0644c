"""Turns between real processes: what they did with the device is what they noted themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.exclusive import Use, gaps_s, overlaps, read_uses, seconds_by_name
from gateway.turn_table import STUCK
from gateway.turns import Claim, TurnLimits
from tests.support.turn_players import GrantsTwice, Players, at
from tests.support.waiting import eventually

ENOUGH = 30


def count(folder: Path, name: str) -> int:
    file = folder / f"{name}.uses"
    return len(file.read_text().splitlines()) if file.exists() else 0


async def test_processes_never_use_the_device_at_once_and_share_its_time(tmp_path: Path):
    async with at(Players(tmp_path)) as players:
        players.start("long", 0.015)
        players.start("short", 0.004, Claim.STEADY)
        players.start("shorter", 0.001, Claim.LIVE)
        await eventually(lambda: count(tmp_path, "long") > ENOUGH, 20.0)
    uses = read_uses(tmp_path)
    assert overlaps(uses) == []
    shared = [use for use in uses if use.begin_ns > max(first_of(uses, name) for name in ("long", "short", "shorter"))]
    seconds = seconds_by_name(shared)
    assert seconds["long"] == pytest.approx(seconds["short"], rel=0.5)


def first_of(uses: list[Use], name: str) -> int:
    return min(use.begin_ns for use in uses if use.name == name)


async def test_a_holder_that_stands_still_is_reported_and_its_turn_is_free_when_it_is_gone(tmp_path: Path):
    async with at(Players(tmp_path, TurnLimits(hold_s=0.3))) as players:
        first = players.start("first", 0.002)
        players.start("second", 0.002)
        await eventually(lambda: min(count(tmp_path, name) for name in ("first", "second")) > 5, 20.0)
        await eventually(lambda: players.table.holder == "first")
        first.stop()
        if players.table.holder != "first":  # it gave the turn back just before
            await eventually(lambda: players.table.holder == "first")
        await eventually(lambda: first.faults == [STUCK], 5.0)
        before = count(tmp_path, "second")
        await eventually(lambda: count(tmp_path, "second") > before + 5)
    assert overlaps(read_uses(tmp_path)) == []


async def test_a_gateway_that_grants_twice_is_caught(tmp_path: Path):
    async with at(Players(tmp_path, rules=GrantsTwice())) as players:
        players.start("first", 0.002)
        players.start("second", 0.002)
        await eventually(lambda: min(count(tmp_path, name) for name in ("first", "second")) > 20, 20.0)
    assert overlaps(read_uses(tmp_path)) != []


def test_uses_one_after_the_other_do_not_overlap_and_others_do():
    one_by_one = [Use(0, 5, "a"), Use(5, 9, "b"), Use(9, 12, "a")]
    assert overlaps(one_by_one) == []
    assert len(overlaps([*one_by_one, Use(1, 20, "c")])) == 3
    assert overlaps([Use(0, 5, "a"), Use(3, 9, "a")]) == []


@pytest.mark.parametrize("has_turns", [False, True])
async def test_a_device_that_does_one_thing_at_a_time_starves_who_wants_little_unless_there_are_turns(
    tmp_path: Path, has_turns: bool
):
    async with at(Players(tmp_path, has_turns=has_turns, device=tmp_path / "device")) as players:
        players.start("long", 0.2)
        players.start("short", 0.005, Claim.STEADY)
        await eventually(lambda: min(count(tmp_path, name) for name in ("long", "short")) > 5, 20.0)
    uses = read_uses(tmp_path)
    assert overlaps(uses) == []  # the device sees to it, with turns or without
    both = [use for use in uses if use.begin_ns > max(first_of(uses, name) for name in ("long", "short"))]
    waits_s = sorted(gaps_s(both, "short"))
    assert (waits_s[len(waits_s) * 3 // 4] < 0.1) is has_turns
