"""Who is told to take turns, and by which limits."""

from __future__ import annotations

from pathlib import Path

import structlog

from gateway.catalogue import CatalogueModel
from gateway.model_status import LoadOptions
from gateway.parts import make_turns
from gateway.sections.turns import TurnSettings
from gateway.settings import Settings
from gateway.turns import TurnLimits
from gateway.worker_starter import worker_settings

LOG = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])


def test_there_is_no_table_where_nobody_takes_turns():
    assert make_turns(TurnSettings(gpu_turns="off"), LOG) is None


def test_turns_last_as_the_settings_say():
    table = make_turns(TurnSettings(burst_s=0.05, hold_s=3.0), LOG)
    assert table is not None
    assert table._limits == TurnLimits(0.05, 3.0)


def test_workers_are_told_where_turns_are_taken():
    entry = CatalogueModel("model", Path("/checkpoint"))
    assert worker_settings(entry, LoadOptions(), Settings())["gpu_turns"] == "auto"
    on = Settings(turns=TurnSettings(gpu_turns="on"))
    assert worker_settings(entry, LoadOptions(), on)["gpu_turns"] == "on"
