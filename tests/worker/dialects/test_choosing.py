"""A dialect is chosen by what a template writes, or by its name."""

import pytest

from worker.dialects.choosing import DIALECTS, UnknownDialectError, dialect_named, dialect_of

from .templates import JOINING, PLAIN, TEMPLATES


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_its_dialect(name: str) -> None:
    dialect = dialect_of(TEMPLATES[name])
    assert dialect is not None
    assert dialect.name == name


@pytest.mark.parametrize(
    "template",
    ["", PLAIN, JOINING, "{{ '<|tool_call_start|>[' + m.tool_calls }}", "<|tool_call|>{{ tool_calls }}"],
)
def test_a_template_that_writes_calls_in_no_known_way_has_no_dialect(template: str) -> None:
    assert dialect_of(template) is None


def test_every_dialect_has_a_name_of_its_own_and_a_template_here() -> None:
    assert {dialect.name for dialect in DIALECTS} == set(TEMPLATES)
    assert all(dialect_named(dialect.name) is dialect for dialect in DIALECTS)


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownDialectError, match="'hermes2'; there are hermes, qwen3_coder, ") as raised:
        dialect_named("hermes2")
    assert raised.value.name == "hermes2"
