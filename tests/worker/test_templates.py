"""Chats are rendered in real child processes, which are killed when they misbehave and replaced."""

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from worker.chat import ChatPrompt
from worker.child import TEMPLATES, Child
from worker.dialects.call import Tool
from worker.errors import ChatTemplateRejected, ModelUnloading, QueueFull, TemplateBusy
from worker.templates import Rendering, Template, TemplateChildError, TemplateRenderer
from worker.tools import Choice, ToolUse

TIMEOUT_S = 2.0
SOURCE = (
    "{% set said = messages[0]['content'] %}"
    "{% if said == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if said == 'fill' %}{% set full = namespace(text='0123456789') %}"
    "{% for _ in range(60) %}{% set full.text = full.text ~ full.text %}{% endfor %}{% endif %}"
    "{% if said == 'escape' %}{{ said.__class__.__mro__[1].__subclasses__() }}{% endif %}"
    "{% if said == 'raise' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %} {{ mood }}"
)

Start = Callable[..., TemplateRenderer]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    renderers: list[TemplateRenderer] = []

    def started(
        source: str = SOURCE, timeout_s: float = TIMEOUT_S, max_waiting: int = 64, *, tells_tail: bool = False
    ) -> TemplateRenderer:
        template = Template(source, "<s>", None, tells_tail)
        renderer = TemplateRenderer(template, timeout_s=timeout_s, max_waiting=max_waiting)
        renderer.start()
        renderers.append(renderer)
        return renderer

    yield started
    for renderer in renderers:
        await renderer.stop()


def is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def chat(said: str, **variables: object) -> ChatPrompt:
    return ChatPrompt("spec.chat", ({"role": "user", "content": said},), variables)


async def test_a_chat_becomes_the_templates_text(start: Start) -> None:
    assert await start().render(chat("hi", mood="glad")) == Rendering("<s>user: hi glad")


async def test_the_template_tells_what_it_reads(start: Start) -> None:
    assert await start("{{ messages[0].content }} {{ mood }}").variables("spec.chat") == {"mood"}


@pytest.mark.parametrize(
    ("said", "words"),
    [("loop", "longer than"), ("fill", "template"), ("escape", "sandbox"), ("raise", "roles must alternate")],
)
async def test_what_misbehaves_is_refused_and_the_next_chat_is_rendered(start: Start, said: str, words: str) -> None:
    renderer = start()
    with pytest.raises(ChatTemplateRejected, match=words) as raised:
        await renderer.render(chat(said))
    assert raised.value.metadata["field"] == "spec.chat"
    assert await renderer.render(chat("hi")) == Rendering("<s>user: hi ")


async def test_a_template_that_is_none_is_refused_each_time_without_a_child(start: Start) -> None:
    renderer = start("{% if %}")
    for _ in range(2):
        with pytest.raises(ChatTemplateRejected, match="not valid"):
            await renderer.render(chat("hi"))
    assert renderer.pid is None


async def test_a_child_that_gets_no_time_is_not_the_callers_fault(start: Start) -> None:
    renderer = start(timeout_s=0.2)
    await renderer.render(chat("hi"))
    stopped = renderer.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(TemplateBusy, match="busy"):
        await renderer.render(chat("hi"))
    assert await renderer.render(chat("hi")) == Rendering("<s>user: hi ")
    assert not is_process(stopped)


SLOW_TO_COMPILE = "{{ " + "('a' | center(200000000) | length) + " * 60 + "1 }}"


async def test_a_template_that_takes_too_long_to_compile_is_refused_for_good(start: Start) -> None:
    """Jinja computes what is constant while it compiles."""
    renderer = start(SLOW_TO_COMPILE, timeout_s=0.5)
    for _ in range(2):
        with pytest.raises(ChatTemplateRejected, match="longer than"):
            await renderer.render(chat("hi"))
        assert renderer.pid is None
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(20):
        with pytest.raises(ChatTemplateRejected, match="longer than"):
            await renderer.variables("spec.chat")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime == spent


async def test_a_child_that_is_killed_again_and_again_while_it_compiles_is_the_templates_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = Child.spawn

    def killed(module: str) -> Child:
        child = spawn(module)
        os.kill(child.pid, signal.SIGKILL)
        return child

    monkeypatch.setattr(Child, "spawn", killed)
    renderer = start()
    with pytest.raises(ChatTemplateRejected, match="too much memory"):
        await renderer.render(chat("hi"))


async def test_a_child_that_does_not_even_start_is_the_machines_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.child.sys.executable", "/bin/false")
    renderer = start()
    for _ in range(3):
        with pytest.raises(TemplateChildError):
            await renderer.render(chat("hi"))


async def test_a_child_that_was_killed_is_replaced(start: Start) -> None:
    renderer = start()
    await renderer.render(chat("hi"))
    first = renderer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await renderer.render(chat("hi")) == Rendering("<s>user: hi ")
    assert renderer.pid not in {None, first}


async def test_a_caller_that_goes_away_leaves_the_others_served(start: Start) -> None:
    renderer = start()
    gone = asyncio.ensure_future(renderer.render(chat("loop")))
    waiting = asyncio.ensure_future(renderer.render(chat("hi")))
    await asyncio.sleep(0)
    gone.cancel()

    assert await waiting == Rendering("<s>user: hi ")


async def test_more_chats_than_may_wait_are_refused(start: Start) -> None:
    renderer = start(max_waiting=1)
    calls = [asyncio.ensure_future(renderer.render(chat("hi"))) for _ in range(20)]

    done = await asyncio.gather(*calls, return_exceptions=True)

    assert Rendering("<s>user: hi ") in done
    assert any(isinstance(each, QueueFull) for each in done)


async def test_after_the_end_nothing_is_rendered_and_no_child_is_left(start: Start) -> None:
    renderer = start()
    await renderer.render(chat("hi"))
    pid = renderer.pid
    looping = asyncio.ensure_future(renderer.render(chat("loop")))
    waiting = asyncio.ensure_future(renderer.render(chat("hi")))
    await asyncio.sleep(0)

    await renderer.stop()

    for call in (looping, waiting, asyncio.ensure_future(renderer.render(chat("hi")))):
        with pytest.raises(ModelUnloading):
            await call
    assert pid is not None
    assert not is_process(pid)


async def test_a_child_ends_with_its_parent_even_while_the_template_loops(start: Start) -> None:
    child = Child.spawn(TEMPLATES)
    hello = b'{"source": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", '
    await child.ask(hello + b'"bos_token": null, "eos_token": null, "timeout_s": 60, "memory_bytes": 536870912}', 20)
    looping = asyncio.ensure_future(
        child.ask(b'{"messages": [], "variables": {}, "continue_final_message": false}', 20)
    )
    await asyncio.sleep(0)
    os.close(child._lifeline)
    child._lifeline = os.open(os.devnull, os.O_RDONLY)

    with pytest.raises((EOFError, ConnectionError)):
        await looping
    await child.end()
    assert not is_process(child.pid)


TOOLS = (Tool("f", "does", {"type": "object", "properties": {"a": {"type": "integer"}}}), Tool("g", "", {}))


async def test_the_template_reads_the_tools_that_are_offered(start: Start) -> None:
    renderer = start("{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}")
    offered, withheld = (
        ChatPrompt("spec.chat", chat("hi").messages, tools=ToolUse(TOOLS, choice))
        for choice in (Choice.AUTO, Choice.NONE)
    )
    first, second = (json.loads(line) for line in (await renderer.render(offered)).text.splitlines())
    assert first["function"] == {"name": "f", "description": "does", "parameters": TOOLS[0].schema}
    assert second["function"]["parameters"] == {"type": "object", "properties": {}}
    assert await renderer.render(withheld) == Rendering("")


ASKING = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}A:<think>{% endif %}"


@pytest.mark.parametrize(
    ("source", "tells_tail", "continues", "tail"),
    [
        (ASKING, True, False, "A:<think>"),
        (ASKING, True, True, ""),
        (ASKING, False, False, ""),
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}<think>", True, False, ""),
        ("{{ add_generation_prompt }}<think>", True, False, "True<think>"),
        ("{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}<think>", True, False, ""),
    ],
)
async def test_the_part_that_begins_the_answer_is_told(
    start: Start, source: str, tells_tail: bool, continues: bool, tail: str
) -> None:
    asked = ChatPrompt("spec.chat", ({"role": "assistant", "content": "<think>"},), continue_final_message=continues)
    rendering = await start(source, tells_tail=tells_tail).render(asked)
    assert rendering.tail == tail
    assert rendering.text.endswith(tail)
