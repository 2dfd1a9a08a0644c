"""`chat` with sampling, stopping and the form of the answer: what flags become in the request."""

from pathlib import Path

import pytest
from pomona.v1 import generation_pb2 as g

from tests.support.scripted_server import ScriptedServer, answer

from .conftest import Run


def asked(server: ScriptedServer, run: Run, *options: str) -> g.GenerationSpec:
    """Return the request's spec without its messages."""
    server.scripts["StreamGenerate"] = answer("a")
    result = run("chat", "m", "Why?", *options)
    assert result.exit_code == 0, result.stderr
    spec = server.call("StreamGenerate").request.spec
    spec.ClearField("chat")
    return spec


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "person.json"
    path.write_text('{"type": "object",\n "required": ["name"]}')
    return path


def test_every_sampling_field_has_an_option(server: ScriptedServer, run: Run) -> None:
    wanted = g.SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.125,
        xtc_probability=0.25,
        xtc_threshold=0.0625,
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        presence_penalty=0.5,
        penalty_window=64,
        seed=7,
        logit_bias={3: -1.5, 42: 100},
        num_sequences=2,
    )
    options = {
        each.name: getattr(wanted, each.name)
        for each in g.SamplingParams.DESCRIPTOR.fields
        if each.name != "logit_bias"
    }
    options["sequences"] = options.pop("num_sequences")
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    spec = asked(server, run, *flags, "--logit-bias", "3=-1.5", "--logit-bias", "42=100")
    assert spec == g.GenerationSpec(sampling=wanted)


def test_every_stopping_field_has_an_option(server: ScriptedServer, run: Run) -> None:
    flags = ("--max-tokens", "9", "--min-tokens", "2", "--stop", "x", "--stop-id", "5", "--stop-id", "6")
    spec = asked(server, run, *flags, "--ignore-eos", "--include-stop", "--max-reasoning-tokens", "4")
    wanted = g.StoppingParams(
        max_tokens=9,
        min_tokens=2,
        stop_strings=["x"],
        stop_token_ids=[5, 6],
        ignore_eos=True,
        include_stop_in_output=True,
        max_reasoning_tokens=4,
    )
    assert {each.name for each, _ in wanted.ListFields()} == {each.name for each in wanted.DESCRIPTOR.fields}
    assert spec == g.GenerationSpec(stopping=wanted)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--logit-bias", "3"], "--logit-bias: '3' is not ID=BIAS, such as 42=-5"),
        (["--logit-bias", "a=1"], "--logit-bias: 'a=1' is not ID=BIAS, such as 42=-5"),
        (["--logit-bias", "-3=1"], "--logit-bias: not within 0 to 4294967295"),
        (["--logit-bias", "3=1", "--logit-bias", "3=2"], "--logit-bias: token 3 is given twice"),
        (["--top-k", "2147483648"], "--top-k: not within 0 to 2147483647"),
        (["--stop-id", "-1"], "--stop-id: not within 0 to 4294967295"),
        (["--penalty-window", "-1"], "--penalty-window: not within 0 to 4294967295"),
        (["--max-reasoning-tokens", "-1"], "--max-reasoning-tokens: not within 0 to 4294967295"),
    ],
)
def test_value_that_no_field_holds_is_refused_here(
    server: ScriptedServer, run: Run, options: list[str], problem: str
) -> None:
    result = run("chat", "m", "Why?", *options)
    assert (result.exit_code, result.stderr, server.calls) == (2, f"error: {problem}\n", [])


def test_schema_is_sent_as_it_is_written(server: ScriptedServer, run: Run, schema: Path) -> None:
    constraint = asked(server, run, "--schema", str(schema)).constraint
    assert constraint == g.Constraint(json_schema=schema.read_text())


def test_grammar_is_sent_as_it_is_written(server: ScriptedServer, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "numbers.lark"
    path.write_text("start: /[0-9]+/\n", encoding="utf-8")
    constraint = asked(server, run, "--grammar", str(path)).constraint
    assert constraint == g.Constraint(lark_grammar="start: /[0-9]+/\n")


def test_any_json_object_may_be_asked_for(server: ScriptedServer, run: Run) -> None:
    assert asked(server, run, "--json-object").constraint == g.Constraint(json_object=g.JsonObject())


def test_regular_expression_is_sent(server: ScriptedServer, run: Run) -> None:
    assert asked(server, run, "--regex", r"\d+,\d").constraint == g.Constraint(regex=r"\d+,\d")


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        (["--choices", "red, green,blue"], ["red", "green", "blue"]),
        (["--choices", "yes"], ["yes"]),
        (["--choices", "no, thanks", "--choices", "yes, please"], ["no, thanks", "yes, please"]),
    ],
)
def test_choices_are_one_list_or_one_each(
    server: ScriptedServer, run: Run, options: list[str], choices: list[str]
) -> None:
    assert list(asked(server, run, *options).constraint.choices.choices) == choices


@pytest.mark.parametrize("option", ["--regex", "--choices"])
def test_answer_has_one_form(server: ScriptedServer, run: Run, option: str) -> None:
    result = run("chat", "m", "Why?", "--json-object", option, "x")
    problem = f"error: --json-object and {option} cannot both hold: give one of them\n"
    assert (result.exit_code, result.stderr, server.calls) == (2, problem, [])


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b'{"type":\n "object",}', ", line 2, column 11: not JSON: "),
        (b"[]", " is not a JSON object"),
        (b'{"a": "\xff"}', " is not UTF-8 at byte 7"),
    ],
)
def test_file_that_is_no_schema_is_refused_by_its_place(
    server: ScriptedServer, run: Run, tmp_path: Path, written: bytes, problem: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(written)
    result = run("chat", "m", "Why?", "--schema", str(path))
    assert (result.exit_code, server.calls) == (2, [])
    assert result.stderr.startswith(f"error: --schema: {path}{problem}")


@pytest.mark.parametrize("option", ["--schema", "--grammar", "--tools"])
def test_file_that_is_not_there_is_named(run: Run, tmp_path: Path, option: str) -> None:
    path = tmp_path / "none"
    result = run("chat", "m", "Why?", option, str(path))
    assert (result.exit_code, result.stderr) == (2, f"error: {option}: cannot read {path}: No such file or directory\n")


def test_schema_nested_beyond_all_measure_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    result = run("chat", "m", "Why?", "--schema", str(path))
    assert (result.exit_code, result.stderr) == (2, f"error: --schema: {path} is nested too deeply\n")


def test_options_in_the_help_tell_their_ranges(run: Run) -> None:
    words = " ".join(run("chat", "--help").stdout.replace("│", " ").split())
    for said in ("0 to 100", "0 to 0.5", "-100 to 100", "-1000 to 1000", "1 to 16", "1 to 256 bytes", "64 times"):
        assert said in words
