"""`doctor`: how findings are told, and what a check that dies leaves behind."""

import json
from collections.abc import Iterator

import pytest

from gateway.cli import doctor
from gateway.cli.finding import Finding
from gateway.process import ChildExit

from .conftest import Run


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    found: list[Finding] = []

    def give() -> Iterator[Finding]:
        return iter(found)

    monkeypatch.setattr(doctor, "_findings", give)
    return found


def test_finding_takes_a_line_and_its_advice_another(findings: list[Finding], run: Run) -> None:
    findings += [Finding("python", "ok", "3.11"), Finding("blas", "warn", "slow", "Install it.")]
    result = run("doctor")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ok", "python", "3.11"],
        ["warn", "blas", "slow"],
        ["Install", "it."],
    ]


def test_failed_check_sets_the_exit_code(findings: list[Finding], run: Run) -> None:
    findings += [Finding("mlx", "fail", "broken"), Finding("python", "ok", "3.11")]
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["check"] for line in result.stdout.splitlines()] == ["mlx", "python"]


def test_check_that_ends_by_a_signal_says_which_and_its_last_words() -> None:
    assert doctor._exit_words(ChildExit(None, 4, ("one", "two"))) == "its process ended by SIGILL: two"
    assert doctor._exit_words(ChildExit(3, None)) == "its process ended by exit code 3"


def test_nobody_claims_apple_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    found = doctor._apple()
    assert (found.state, doctor.NOBODY_RAN_IT in found.value) == ("warn", True)


def test_checks_that_need_mlx_end_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def without_mlx(name: str) -> Finding:
        return Finding(name, "warn", "mlx is not installed")

    monkeypatch.setattr(doctor, "_worker_check", without_mlx)
    checks = [json.loads(line)["check"] for line in run("doctor", "--json").stdout.splitlines()]
    assert checks == ["python", "apple", "mlx"]
