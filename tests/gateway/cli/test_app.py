"""The list of verbs and what it costs to start."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

from gateway.cli.app import MEANT, VERBS, _command

from .conftest import Run


@pytest.mark.parametrize("name", VERBS)
def test_help_of_every_verb_begins_with_its_line_in_the_list(run: Run, name: str) -> None:
    verb = VERBS[name]
    function = getattr(importlib.import_module(f"gateway.cli.{verb.module}"), verb.function)
    assert (inspect.getdoc(function) or "").splitlines()[0] == verb.line
    result = run(name, "--help")
    assert (result.exit_code, verb.line in result.stdout) == (0, True)


@pytest.mark.parametrize("name", VERBS)
def test_help_of_every_verb_has_what_is_written_in_brackets(run: Run, name: str) -> None:
    function = getattr(importlib.import_module(f"gateway.cli.{VERBS[name].module}"), VERBS[name].function)
    helps = [getattr(param, "help", None) or "" for param in _command(name).params]
    assert all("[" not in each for each in helps)
    shown = run(name, "--help").stdout
    assert all(each in shown for each in re.findall(r"\[(?!bold\])[a-z-]+\]", function.__doc__ or ""))


@pytest.mark.parametrize("name", VERBS)
def test_help_of_every_verb_has_no_marks_of_bold(run: Run, name: str) -> None:
    assert "bold]" not in run(name, "--help").stdout


@pytest.mark.parametrize("name", VERBS)
def test_help_of_every_verb_is_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, run: Run, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in run(name, "--help").stdout


def test_list_of_verbs_is_printed_without_importing_grpc_or_the_server() -> None:
    code = (
        "import sys; from gateway.cli.app import app; app(['--help'], standalone_mode=False); "
        "print([m for m in sys.modules if m in ('grpc', 'google.protobuf', 'pydantic', 'structlog', 'gateway.server')])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "chat" in result.stdout


def test_verb_that_is_unknown_is_a_usage_error_with_a_suggestion(run: Run) -> None:
    result = run("modles")
    assert result.exit_code == 2
    assert "models" in result.stderr


@pytest.mark.parametrize("word", MEANT)
def test_what_other_tools_call_a_verb_is_answered_with_its_name_here(run: Run, word: str) -> None:
    assert word not in VERBS
    assert MEANT[word].split()[0] in VERBS
    result = run(word, "smol")
    assert (result.exit_code, f"pomona {MEANT[word]}" in result.stderr) == (2, True)
