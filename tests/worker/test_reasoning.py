"""Marks of reasoning are found where a template or the settings name them, and where a prompt leaves them is told."""

import pytest

from worker.reasoning import (
    MarksError,
    ReasoningMarks,
    Start,
    marks_in,
    marks_of,
    start_of,
    start_of_answer,
    start_of_chat,
)

THINK = ReasoningMarks("<think>", "</think>")
QWEN3_END = "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        (QWEN3_END, THINK),
        ("{% set content = content.split('</think>')[-1] %}", THINK),
        (
            "{{ '<|channel>thought\\n' + thinking + '\\n<channel|>' }}",
            ReasoningMarks("<|channel>thought", "<channel|>"),
        ),
        ("{{ '[THINK]' + block.thinking + '[/THINK]' }}", ReasoningMarks("[THINK]", "[/THINK]")),
        ("{{ '<seed:think>' + x + '</seed:think>' }}", ReasoningMarks("<seed:think>", "</seed:think>")),
        ("{{ message.content }}", None),
        ("Use <think> as you like. {{ message.content }}", None),
    ],
)
def test_the_marks_are_those_that_the_template_closes(template: str, marks: ReasoningMarks | None):
    assert marks_in(template) == marks


def test_the_settings_win_over_the_template():
    assert marks_of(("<a>", "</a>"), QWEN3_END) == ReasoningMarks("<a>", "</a>")
    assert marks_of("none", QWEN3_END) is None
    assert marks_of(None, QWEN3_END) == THINK
    assert marks_of(None, None) is None


@pytest.mark.parametrize(
    "setting", ["think", ("<a>",), ("<a>", ""), (" <a>", "</a>"), ("<a>", "<a>"), ("<a>", "x<a>"), ("<a>", "x" * 65)]
)
def test_marks_that_could_not_be_told_apart_are_refused(setting: str | tuple[str, ...]):
    with pytest.raises(MarksError):
        marks_of(setting, None)


@pytest.mark.parametrize(
    ("tail", "start"),
    [
        ("<|im_start|>assistant\n", Start.BEFORE),
        ("<|im_start|>assistant\n<think>\n", Start.INSIDE),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Start.BEHIND),
        ("<think>\nWell, ", Start.INSIDE),
        ("</think>", Start.BEHIND),
    ],
)
def test_the_part_that_begins_the_answer_decides(tail: str, start: Start):
    assert start_of_chat("user: what does <think> mean?\n" + tail, tail, THINK) is start
    assert start_of_chat("user: and </think>?\n" + tail, tail, THINK) is start


def test_of_other_prompts_only_the_very_end_counts():
    assert start_of("Explain <think> to me", THINK) is Start.BEFORE
    assert start_of("assistant: <think>\n", THINK) is Start.INSIDE
    assert start_of("assistant: <think>\n\n</think>\n", THINK) is Start.BEHIND
    assert start_of_chat("assistant: <think>\n", "", THINK) is Start.INSIDE


@pytest.mark.parametrize(
    ("begun", "start"),
    [
        ("<think>\nso far", Start.INSIDE),
        ("<think>a</think>b", Start.BEHIND),
        ("the answer", Start.BEHIND),
        (" ", Start.BEFORE),
    ],
)
def test_an_answer_that_is_continued_is_where_its_own_text_is(begun: str, start: Start):
    assert start_of_answer(begun, THINK) is start


def test_without_marks_every_prompt_is_behind_them():
    assert start_of("<think>", None) is start_of_chat("<think>", "<think>", None) is Start.BEHIND
    assert start_of_answer("<think>", None) is Start.BEHIND
