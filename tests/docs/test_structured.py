"""What `docs/structured.md` says of constraints, tools and reasoning: its lists, and its examples as they stand."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page import Page, run_node, run_pomona, run_python
from tests.docs.thinking_model import write_thinking_llama
from tests.support.served import Served, served
from worker import tools
from worker.constraints import grammar, keywords, schema, schema_values
from worker.dialects.choosing import DIALECTS

PAGE = Page("structured.md")
# What the examples print, whatever a model of random weights answers.
PERSON = r"person: \d+\n"
VERDICT = r"verdict: (true|false|unknown)\n"
CALLS = r"(called: get_weather 21\n)+"
STREAM = r"(calls again: .*\n)*finished: FINISH_REASON_MAX_TOKENS\nreasoning tokens: [1-9]\d*\n"
CONSTRAINED = r"date: 20\d\d-\d\d\n" + VERDICT + r"sum: \d+( \+ \d+){1,2}\n"
REFUSED = r"refused: UNSUPPORTED_OPTION spec\.constraint\.json_schema\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_thinking_llama(tmp_path_factory.mktemp("thinking") / "checkpoint")
    with served("--model", f"qwen3={folder}") as running:
        yield running


def words(mark: str) -> list[str]:
    """Return what is in backquotes in the paragraph under a mark."""
    paragraph = re.search(rf"^<!-- {mark} -->\n(.*?)\n\n", PAGE.text, re.MULTILINE | re.DOTALL)
    assert paragraph is not None, mark
    return re.findall(r"`([^`]+)`", paragraph[1])


def test_python_example_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    printed = run_python(server.address, tmp_path, *PAGE.blocks("python"))
    assert re.fullmatch(PERSON + CONSTRAINED + REFUSED + CALLS + STREAM, printed), printed


def test_node_example_runs_as_it_stands(server: Served, tmp_path: Path) -> None:
    printed = run_node(server.address, tmp_path, *PAGE.blocks("js"))
    assert re.fullmatch(PERSON + VERDICT + CALLS + STREAM, printed), printed


def test_example_of_a_grammar_is_one(server: Served, tmp_path: Path) -> None:
    grammar_file = tmp_path / "names.lark"
    grammar_file.write_text(next(block for block in PAGE.blocks("") if block.startswith("start:")))
    asked = ("chat", "qwen3", "A name.", "--no-thinking", "--grammar", str(grammar_file))
    printed = run_pomona(server.address, tmp_path, *asked)
    assert re.fullmatch(r"name: [A-Z][a-z]{2,8}\n\[(\d\d?(, \d\d?){0,2})?\]\n", printed), printed


def test_every_keyword_of_a_schema_is_listed_for_what_it_is() -> None:
    assert sorted(words("keywords: enforced")) == sorted(keywords.SUPPORTED)
    assert sorted(words("keywords: refused")) == sorted(keywords.UNSUPPORTED)
    assert sorted(words("keywords: formats")[1:]) == sorted(keywords.FORMATS)
    assert words("keywords: harmless") == sorted(f"{name}: {str(value).lower()}" for name, value in keywords.HARMLESS)


def test_every_dialect_is_listed() -> None:
    rows = re.findall(r"^\| (`[a-z0-9_`, ]+`) \|", PAGE.text.partition("| dialect |")[2], re.MULTILINE)
    assert re.findall(r"`([^`]+)`", " ".join(rows)) == [dialect.name for dialect in DIALECTS]


@pytest.mark.parametrize(
    "limit",
    [
        f"| {grammar.MAX_SCHEMA_BYTES >> 20} MiB, {schema.MAX_DEPTH} levels |",
        f"| {grammar.MAX_REGEX_BYTES >> 10} KiB |",
        f"| {grammar.MAX_CHOICES:,} strings, {grammar.MAX_CHOICES_BYTES >> 20} MiB together |",
        f"| {grammar.MAX_LARK_BYTES >> 10} KiB |",
        f"at most {schema.MAX_PROPERTIES:,} names of one object",
        f"`multipleOf` up to {schema_values.MAX_MULTIPLE:,}",
        f"At most {tools.MAX_TOOLS} tools",
        f"a description of {tools.MAX_DESCRIPTION_BYTES >> 10} KiB and a schema of {tools.MAX_SCHEMA_BYTES >> 10} KiB",
    ],
)
def test_every_limit_is_told(limit: str) -> None:
    assert limit in PAGE.words
