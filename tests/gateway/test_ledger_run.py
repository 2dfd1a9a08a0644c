"""The random run of `bench.ledger`, in short: the ledger holds, and each thing that is wrong on purpose is seen."""

from pathlib import Path

import pytest

from bench.ledger import VERDICTS, WAYS, figures, play

SHORT_S = 2.5
LEDGER = "with the ledger"
LONG_S = 40.0  # where a fault is to be seen, which mostly takes a second or two


async def test_with_the_ledger_nothing_happens_that_never_may(tmp_path: Path) -> None:
    played = await play(tmp_path, SHORT_S, 1)
    assert VERDICTS[LEDGER](played), figures(played)


@pytest.mark.parametrize("name", [name for name in VERDICTS if name != LEDGER])
async def test_each_thing_that_is_wrong_is_seen(tmp_path: Path, name: str) -> None:
    way, budget = WAYS[name]
    with way():
        played = await play(tmp_path, LONG_S, 1, budget=budget, is_enough=VERDICTS[name])
    assert VERDICTS[name](played), figures(played)
