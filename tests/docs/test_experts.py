"""What `docs/experts.md` says: its settings and commands as they stand, and its limits."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.app import VERBS, _command
from gateway.cli.trace_file import META, read_trace
from gateway.settings import load_settings
from models.checkpoint.slab_sizes import READ_BYTES
from models.experts.expert_slab import READ_BYTES as OF_A_THREAD
from models.experts.expert_slab import READ_THREADS
from models.experts.trace import MAX_BYTES
from models.experts.usage import LEAST_SELECTIONS, PINNED_SHARE, SURE_SELECTIONS
from tests.docs.page import Page, run_python
from tests.models.experts.holding import write_mixture
from tests.support.served import served
from worker.expert_loading import USAGE_FILE
from worker.settings import EXPERTS

PAGE = Page("experts.md")


@pytest.mark.parametrize("text", PAGE.blocks("toml"))
def test_settings_are_taken_as_they_stand(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pomona.toml"
    file.write_text(text)
    (model,) = load_settings(file).models
    assert model.expert_budget == 8 * 10**9 or model.expert_trace is not None


def test_the_python_example_runs_as_it_stands(tmp_path: Path) -> None:
    write_mixture(tmp_path / "model", is_packed=False)
    settings = tmp_path / "pomona.toml"
    settings.write_text(f'[[models]]\nname = "qwen3-30b"\ncheckpoint = "{tmp_path}/model"\ncontext_tokens = 64\n')
    with served("--settings", str(settings)) as running:
        printed = run_python(running.address, tmp_path, *PAGE.blocks("python"))
    assert re.fullmatch(
        r"[\d,]+ of [\d,]+ bytes, with room for 16 of 16 experts\nloaded, with slabs of up to [\d,]+ bytes\n", printed
    ), printed


def test_the_line_of_a_trace_is_one(tmp_path: Path) -> None:
    (line,) = PAGE.blocks("json")
    file = tmp_path / "trace.jsonl"
    file.write_text(f'{{"meta": "{META}", "note": ""}}\n{line}')
    (choice,) = read_trace(file)
    assert (choice.layer, choice.num_chosen, len(choice.ids)) == (3, 4, 8)
    assert f"`{META}`" in PAGE.text


def test_commands_have_these_options() -> None:
    lines = [shlex.split(line, comments=True) for block in PAGE.blocks("sh") for line in block.splitlines()]
    assert lines
    for command, verb, *arguments in lines:
        assert (command, verb in VERBS) == ("pomona", True)
        known: set[Any] = {each for param in _command(verb).params for each in param.opts}
        assert {each for each in arguments if each.startswith("--")} <= known


def test_every_mode_is_told() -> None:
    for mode in EXPERTS:
        assert f"| `{mode}` |" in PAGE.text


def test_limits_are_those_that_hold() -> None:
    assert (READ_THREADS * OF_A_THREAD, READ_BYTES) == (4 << 20, 4 << 20)
    assert "beside 4 MiB that files are read through" in PAGE.words
    assert (LEAST_SELECTIONS, SURE_SELECTIONS, PINNED_SHARE) == (5_000, 200_000, 0.5)
    assert "up to half of each layer's slots: none before 5,000 choices, all of that half from 200,000 on" in PAGE.words
    assert (MAX_BYTES, USAGE_FILE) == (1 << 30, "experts.usage")
    assert "up to 1 GiB" in PAGE.text
    assert f"`{USAGE_FILE}`" in PAGE.text
