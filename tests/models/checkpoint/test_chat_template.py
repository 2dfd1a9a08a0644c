"""Chat templates: what Hugging Face's templates need, what a request may set, and what a hostile one cannot do."""

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoint.chat_template import MAX_MESSAGE_CHARS, MAX_OUTPUT_BYTES, ChatTemplate
from models.checkpoint.errors import TemplateRejected

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi"}]


def rendered(source: str, messages: list[dict[str, Any]] = HELLO, **variables: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, variables, False, False)


def continued(source: str, content: object) -> str:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    return ChatTemplate(source, None, None).render(messages, {}, False, True)


def rejection(source: str, **variables: Any) -> str:
    with pytest.raises(TemplateRejected) as caught:
        rendered(source, **variables)
    return str(caught.value)


def test_renders_messages_and_the_start_of_an_answer() -> None:
    template = ChatTemplate(CHATML, None, None)
    assert template.render(HELLO, {}, True, False) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HELLO, {}, False, False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_blocks_leave_no_white_space_behind() -> None:
    assert (
        rendered("{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n")
        == "user\n"
    )


def test_loops_can_break_and_continue() -> None:
    source = (
        "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% elif n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    )
    assert rendered(source) == "023"


def test_the_mark_for_training_is_read_as_what_is_within() -> None:
    assert rendered("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHib"


def test_tojson_keeps_characters_and_order() -> None:
    assert rendered("{{ value | tojson }}", value={"z": "<é世>", "a": 1}) == '{"z": "<é世>", "a": 1}'
    assert rendered("{{ value | tojson(indent=1) }}", value=[1]) == "[\n 1\n]"


def test_tells_the_time_by_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", None, None, now=lambda: datetime(2024, 7, 26))  # noqa: DTZ001
    assert template.render([], {}, False, False) == "26 Jul 2024"


def test_has_the_texts_of_the_tokens_or_nothing() -> None:
    assert rendered("{{ bos_token }}|{{ eos_token }}") == "<s>|</s>"
    assert ChatTemplate("{{ bos_token is defined }}", None, None).render([], {}, False, False) == "False"


def test_tools_are_none_unless_given() -> None:
    assert rendered("{{ tools is none }} {{ documents is none }}") == "True True"
    assert rendered("{{ tools[0] }}", tools=["x"]) == "x"


def test_an_undefined_variable_is_empty() -> None:
    assert rendered("[{{ nothing }}]") == "[]"


def test_lists_the_variables_that_a_request_may_set() -> None:
    source = CHATML + "{% if enable_thinking %}{{ strftime_now('%Y') }}{{ bos_token }}{{ tools }}{{ date }}{% endif %}"
    assert ChatTemplate(source, None, None).variables == {"enable_thinking", "date"}
    assert (
        ChatTemplate("{% set x = 1 %}{{ x }}{% for y in messages %}{{ y }}{% endfor %}", None, None).variables
        == frozenset()
    )


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "eos_token"])
def test_a_request_cannot_set_a_standard_name(name: str) -> None:
    with pytest.raises(TemplateRejected, match=name):
        ChatTemplate(CHATML, None, None).render(HELLO, {name: "x"}, False, False)


@pytest.mark.parametrize("content", ["The answer is", "The answer is ", " im", "", "a\n\n", "user", "<|im_end|>"])
def test_a_continued_message_ends_right_after_its_text(content: str) -> None:
    assert continued(CHATML, content) == f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{content}"


def test_white_space_that_the_template_trims_stays_trimmed() -> None:
    trimming = CHATML.replace("message['content']", "message['content'] | trim")
    assert continued(trimming, "  The answer is \n").endswith("assistant\nThe answer is")


def test_continues_the_last_text_of_a_message_in_parts() -> None:
    source = "{% for m in messages %}[{% for p in m.content %}{{ p.text }};{% endfor %}]{% endfor %}"
    messages = [{"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]}]
    assert ChatTemplate(source, None, None).render(messages, {}, False, True) == "[a;b"
    assert messages[0]["content"] == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    "source",
    [
        "the same for all",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.content[:2] }}{% endfor %}",
        "{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}",
    ],
)
def test_a_final_message_that_cannot_be_found_is_refused(source: str) -> None:
    with pytest.raises(TemplateRejected, match="cannot be found"):
        continued(source, "text")


@pytest.mark.parametrize("messages", [[], [{"role": "assistant"}], [{"role": "assistant", "content": [{"x": 1}]}]])
def test_a_final_message_without_text_cannot_be_continued(messages: list[Mapping[str, Any]]) -> None:
    with pytest.raises(TemplateRejected, match="final message"):
        ChatTemplate("{{ messages }}", None, None).render(messages, {}, False, True)


def test_continuing_and_starting_an_answer_exclude_each_other() -> None:
    with pytest.raises(TemplateRejected):
        ChatTemplate(CHATML, None, None).render(HELLO, {}, True, True)


def test_passes_on_what_the_template_raises() -> None:
    assert rejection("{{ raise_exception('roles must alternate') }}") == "roles must alternate"
    long = rejection("{{ raise_exception('ab\nc' * 1000) }}")
    assert len(long) == MAX_MESSAGE_CHARS
    assert long.startswith("ab cab c")


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x | nofilter }}", "{% for %}", "{{ 1 +", "{% break %}", "(" * 3000 + "{{" + "(" * 3000]
)
def test_refuses_a_source_that_is_no_template(source: str) -> None:
    with pytest.raises(TemplateRejected, match="not valid") as caught:
        ChatTemplate(source, None, None)
    assert "/" not in str(caught.value)


def test_says_what_failed_and_where_without_the_words_of_the_exception() -> None:
    assert rejection("a\n{{ 1 / 0 }}") == "the chat template fails (ZeroDivisionError) at line 2"
    assert "TypeError" in rejection("{{ 'a' + 1 }}")
    assert "UndefinedError" in rejection("{{ nothing.at.all }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ strftime_now.__globals__.keys() }}",
        "{{ raise_exception.__code__.co_filename }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 2000000 }}",
        "{{ 2 ** 64 ** 64 }}",
        "{{ 2 ** 100000 }}",
        "{{ (''|attr('__class__')).__base__ }}",
    ],
)
def test_cannot_leave_the_sandbox(source: str) -> None:
    assert rejection(source).startswith("the chat template tries to leave its sandbox")


@pytest.mark.parametrize(
    "source",
    [
        "{% for n in range(10 ** 9) %}x{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_that_goes_too_far_fails(source: str) -> None:
    assert rejection(source).startswith("the chat template fails")


def test_reads_no_file_and_has_no_filler_text() -> None:
    assert rendered("{{ lipsum }}{{ open }}{{ self.x }}{{ request }}") == ""


def test_output_is_cut_off_while_it_comes() -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'é' * 1000 }}{% endfor %}{% endfor %}"
    assert str(MAX_OUTPUT_BYTES) in rejection(source)


def test_output_up_to_the_limit_is_whole() -> None:
    text = "é" * (MAX_OUTPUT_BYTES // 2)
    assert rendered("{{ text }}", text=text) == text
    assert str(MAX_OUTPUT_BYTES) in rejection("{{ text }}!", text=text)


@settings(max_examples=200)
@given(st.text(alphabet="{}%|'\" abmessages.()[]=+*~-\n", max_size=60))
def test_any_source_renders_or_is_refused(source: str) -> None:
    for template in (source, "{{ messages }}{% if x %}" + source):
        with contextlib.suppress(TemplateRejected):
            ChatTemplate(template, "<s>", None).render(HELLO, {"x": True}, False, False)


@settings(max_examples=200)
@given(st.text())
def test_any_text_can_be_continued(text: str) -> None:
    assert continued(CHATML, text).endswith(f"assistant\n{text}")
