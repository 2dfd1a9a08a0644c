"""The rolling restart in small: an orderly one drops nothing, and a gateway that is killed is seen to drop streams."""

import signal

from bench.rolling import Round, play

ORDERLY = {"drain_notice_s": 0.3, "drain_grace_s": 20.0}
LONG_MESSAGES = 16


async def test_an_orderly_restart_drops_nothing() -> None:
    tally = await play(Round("orderly", ORDERLY), restarts=1, clients=6, long_messages=LONG_MESSAGES)
    assert (dict(tally.broken), tally.exit_codes) == ({}, [0])
    assert set(tally.whole) == {"short", "long", "unary"}


async def test_a_killed_gateway_is_seen_to_drop_streams() -> None:
    round_ = Round("killed", ORDERLY, number=signal.SIGKILL)
    tally = await play(round_, restarts=1, clients=9, long_messages=2 * LONG_MESSAGES)
    assert any(": UNAVAILABLE" in how for how in tally.broken)
    assert not tally.holds(is_clean=True)
