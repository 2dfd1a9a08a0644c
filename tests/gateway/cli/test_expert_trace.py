"""`expert-trace`: what a trace says of coverage, working sets and stability, its plot, and files that are none."""

import importlib.util
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import trace_file, trace_plot
from gateway.cli.trace_file import META, RouterChoice, read_trace
from gateway.cli.trace_summary import TraceSummary, summed_up
from models.experts.trace import META as WRITTEN
from models.experts.trace import ExpertTrace

from .conftest import Run

PNG = b"\x89PNG"


def choices(tokens: Iterable[tuple[int, ...]], layer: int = 0) -> list[RouterChoice]:
    """Return decode steps of one layer."""
    return [RouterChoice(layer, len(ids), list(ids)) for ids in tokens]


def written(file: Path, steps: Iterable[tuple[int, list[tuple[int, ...]]]]) -> Path:
    head = json.dumps({"meta": META, "note": ""})
    records = [
        json.dumps(
            {"c": number, "l": layer, "s": [1, len(rows), len(rows[0])], "i": [each for row in rows for each in row]}
        )
        for number, (layer, rows) in enumerate(steps)
    ]
    file.write_text("\n".join([head, *records, ""]))
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two layers of 8 experts over 64 tokens: layer 0 needs two of them, layer 1 goes round all."""
    steps = [
        (layer, [(0, 1) if layer == 0 else (token % 8, (token + 1) % 8)]) for token in range(64) for layer in (0, 1)
    ]
    return written(tmp_path / "trace.jsonl", steps)


def test_reads_what_a_model_writes(tmp_path: Path) -> None:
    import mlx.core as mx

    trace = ExpertTrace(tmp_path / "trace.jsonl")
    trace.observe(5, mx.array([[[3, 1], [2, 0]]]))
    trace.close()
    assert WRITTEN == META
    assert list(read_trace(tmp_path / "trace.jsonl")) == [RouterChoice(5, 2, [3, 1, 2, 0])]


def test_coverage_is_that_of_the_best_experts_of_each_layer() -> None:
    summary = TraceSummary(16, num_experts=4)
    summed_up(choices([(0, 1), (0, 1), (0, 2)]), summary)
    summed_up(choices([(3, 2), (3, 2), (3, 2)], layer=1), summary)
    assert list(summary.coverage()) == [(1, 6 / 12), (2, 11 / 12), (3, 1.0), (4, 1.0)]
    assert dict(summary.needed()) == {0.5: 1, 0.8: 2, 0.9: 2, 0.95: 3, 0.99: 3}


def test_a_prompt_counts_as_its_tokens_one_by_one() -> None:
    tokens = [(token % 5, 5 + token % 3) for token in range(40)]
    one_by_one, at_once = (TraceSummary(16) for _ in range(2))
    summed_up(choices(tokens), one_by_one)
    at_once.add(RouterChoice(0, 2, [each for ids in tokens for each in ids]))
    for told in (TraceSummary.coverage, TraceSummary.working_sets, TraceSummary.stability):
        assert list(told(one_by_one)) == list(told(at_once))


def test_working_sets_are_of_whole_stretches() -> None:
    summary = summed_up(choices((token // 8, 7) for token in range(20)), TraceSummary(16))
    assert [(each.tokens, each.mean, each.largest) for each in summary.working_sets()] == [(1, 2.0, 2), (8, 2.0, 2)]


def test_stability_tells_what_the_last_windows_experts_are_worth() -> None:
    same, other = [(0,)] * 16, [(1,)] * 16
    stable = summed_up(choices([*same, *same]), TraceSummary(16, num_experts=8))
    moving = summed_up(choices([*same, *other]), TraceSummary(16, num_experts=8))
    assert {(each.overlap, each.hits) for each in stable.stability()} == {(1.0, 1.0)}
    assert {(each.overlap, each.hits) for each in moving.stability()} == {(0.0, 0.0)}


def test_a_window_that_is_not_over_says_nothing() -> None:
    assert not list(summed_up(choices([(0,)] * 31), TraceSummary(16)).stability())


def test_tells_it_to_people(run: Run, trace: Path) -> None:
    result = run("expert-trace", str(trace), "--window", "16")
    assert result.exit_code == 0
    assert "8 a layer, 2 for a token, 5.0 used" in result.stdout
    assert "WORK OF THE NEXT WINDOW" in result.stdout


def test_a_short_trace_says_what_it_lacks(run: Run, trace: Path) -> None:
    result = run("expert-trace", str(trace), "--window", "64")
    assert (result.exit_code, "Too short for two windows of 64 tokens" in result.stdout) == (0, True)


def test_tells_it_to_programs(run: Run, trace: Path) -> None:
    found: dict[str, Any] = json.loads(run("expert-trace", str(trace), "--window", "16", "--json").stdout)
    assert {name: found[name] for name in ("tokens", "layers", "experts", "chosen", "used", "windowTokens")} == {
        "tokens": 64,
        "layers": 2,
        "experts": 8,
        "chosen": 2,
        "used": 5.0,
        "windowTokens": 16,
    }
    assert found["workingSets"][1] == {"tokens": 8, "mean": 5.0, "largest": 8}
    assert [each["experts"] for each in found["stability"]] == [1, 2, 4, 6]
    assert found["coverage"][-1] == {"experts": 8, "work": 1.0}


def test_draws_it(run: Run, trace: Path, tmp_path: Path) -> None:
    plot = tmp_path / "trace.png"
    result = run("expert-trace", str(trace), "--window", "16", "--plot", str(plot))
    assert (result.exit_code, plot.read_bytes()[:4]) == (0, PNG)


def test_drawing_without_matplotlib_names_the_extra(
    run: Run, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(trace_plot, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    result = run("expert-trace", str(trace), "--plot", str(tmp_path / "trace.png"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'pomona[plot]'" in result.stderr


@pytest.mark.parametrize(("plot", "words"), [("trace.pdf", "must end with .png"), ("nowhere/trace.png", "no folder")])
def test_a_plot_that_cannot_be_written_is_refused_first(run: Run, trace: Path, plot: str, words: str) -> None:
    result = run("expert-trace", str(trace), "--plot", str(trace.parent / plot))
    assert (result.exit_code, result.stdout, words in result.stderr) == (2, "", True)


HEAD = f'{{"meta": "{META}"}}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no trace of experts"),
        ('{"meta": "another"}\n', "it is no trace of experts"),
        (HEAD + "no JSON\n", "line 2 is no choice"),
        (HEAD + "[" * 100_000 + "\n", "line 2 is no choice"),
        ("[" * 100_000 + "\n", "no trace of experts"),
        (HEAD + '{"c": 0, "l": 0, "s": [1, 2, 2], "i": [1, 2, 3]}\n', "line 2 is no choice"),
        (HEAD + '{"c": 0, "l": 0, "s": [1, 1, 1], "i": [-1]}\n', "line 2 is no choice"),
        (HEAD + '{"c": 0, "l": 0, "s": [1, 1, 0], "i": []}\n', "line 2 is no choice"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(run: Run, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    result = run("expert-trace", str(tmp_path / "trace.jsonl"))
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_a_trace_with_nothing_in_it_yet_is_a_failure_and_no_wrong_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(HEAD)
    result = run("expert-trace", str(tmp_path / "trace.jsonl"))
    assert (result.exit_code, "nothing is in it yet" in result.stderr) == (1, True)


def test_fewer_experts_than_were_chosen_are_refused(run: Run, trace: Path) -> None:
    result = run("expert-trace", str(trace), "--layer-experts", "2")
    assert (result.exit_code, "expert 7 was chosen" in result.stderr) == (2, True)
    assert "16 a layer" in run("expert-trace", str(trace), "--layer-experts", "16").stdout


def test_a_file_that_is_not_there_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("expert-trace", str(tmp_path / "trace.jsonl"))
    assert (result.exit_code, "No such file" in result.stderr) == (2, True)


def test_a_line_that_was_cut_off_ends_the_trace(trace: Path) -> None:
    whole = trace.read_text()
    trace.write_text(whole + '{"c": 128, "l": 0, "s": [1, 1')
    assert len(list(read_trace(trace))) == 128


def test_a_line_without_an_end_is_not_read_whole(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_LINE_CHARS", 100)
    with trace.open("a") as stream:
        stream.write('{"c": 128, "l": 0, "s": [1, 1, 100], "i": [' + "1, " * 99 + "1]}")
    result = run("expert-trace", str(trace))
    assert (result.exit_code, "line 130 is no choice of a router" in result.stderr) == (2, True)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is no trace of experts" in run("expert-trace", str(tmp_path / "pipe")).stderr


def test_many_layers_and_high_ids_are_summed_up_at_once() -> None:
    summary = TraceSummary(16)
    for layer in range(20_000):
        summary.add(RouterChoice(layer, 2, [layer % 7, 65_535]))
    began = time.perf_counter()
    points = list(summary.coverage())
    assert (summary.num_experts, points[0], points[1]) == (65_536, (1, 0.5), (2, 1.0))
    assert not list(summary.stability())
    assert time.perf_counter() - began < 5
