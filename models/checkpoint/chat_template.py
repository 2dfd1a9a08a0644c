"""Turning messages into a prompt with the template that a checkpoint brings, which is not trusted.

The template runs in Jinja's immutable sandbox, and its output is cut off at 1 MiB while it comes. Time and memory are
bounded by whoever runs it: nothing in one process can stop a template that loops without output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.checkpoint.errors import TemplateRejected, quotable

MAX_OUTPUT_BYTES = 1 << 20
MAX_MESSAGE_CHARS = 500
_MAX_PRODUCT_LENGTH = 1 << 20
_MAX_EXPONENT = 64
_STANDARD_NAMES = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token", "tools", "documents"})
_END_MARK = "\ue000end of the final message\ue001"
# Whatever Python raises when a template adds a number to a text, divides by zero, calls what is no function, ...
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template.

    Attributes:
        variables: names that the template reads beside the standard ones: what a caller may set.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None,
        eos_token: str | None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja source.
            bos_token: text of the begin-of-text token, undefined in the template where None.
            eos_token: text of the main end-of-text token, undefined in the template where None.
            now: clock that `strftime_now` reads.

        Raises:
            TemplateRejected: the source is no valid template.
        """
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
        given: dict[str, Any] = environment.globals
        del given["lipsum"]
        given["raise_exception"] = _raise
        given["strftime_now"] = _strftime(now)
        environment.filters["tojson"] = _tojson
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
        except (*_FAULTS, SyntaxError) as error:
            line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else None
            raise TemplateRejected(f"the chat template is not valid{_at_line(line)}") from error
        self._tokens = {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None
        }
        undeclared = jinja2.meta.find_undeclared_variables(tree)
        self.variables = frozenset(undeclared.difference(_STANDARD_NAMES, given))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Render messages.

        With `continue_final_message` the result ends right after the text of the last message. White space at the end
        of that text stays if the template keeps it there, and goes if the template would trim it.

        Args:
            messages: role, content (text, or parts of which the text ones have `text`) and what else a template reads.
            variables: further variables; `tools` and `documents` are None unless given here.
            add_generation_prompt: whether the prompt ends with the start of an answer.
            continue_final_message: whether the prompt ends within the last message; not with the former.

        Raises:
            TemplateRejected: the template fails, raises, leaves the sandbox or writes over 1 MiB; a variable has a
                standard name; or the final message cannot be found in the output.
        """
        taken = variables.keys() & {"messages", "add_generation_prompt", "bos_token", "eos_token"}
        if taken:
            raise TemplateRejected(f"{min(taken)} is no variable that a request may set")
        if continue_final_message and add_generation_prompt:
            raise TemplateRejected("a final message cannot be continued and followed by a generation prompt")
        context = {"tools": None, "documents": None, **variables, **self._tokens}
        context["add_generation_prompt"] = add_generation_prompt
        whole = self._output({**context, "messages": messages})
        if not continue_final_message:
            return whole
        marked = self._output({**context, "messages": _marked(messages)})
        begin, mark, _ = marked.partition(_END_MARK)
        if mark and marked.count(_END_MARK) == 1:
            for prompt in (begin, begin.rstrip()):
                if whole.startswith(prompt):
                    return prompt
        raise TemplateRejected("the final message cannot be found in what the chat template makes of it")

    def _output(self, context: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        left = MAX_OUTPUT_BYTES
        try:
            for piece in self._template.generate(context):
                left -= len(piece.encode("utf-8"))
                if left < 0:
                    raise TemplateRejected(f"the chat template writes more than {MAX_OUTPUT_BYTES} bytes")
                pieces.append(piece)
        except SecurityError as error:
            raise TemplateRejected("the chat template tries to leave its sandbox" + _place(error)) from error
        except _FAULTS as error:
            raise TemplateRejected(f"the chat template fails ({type(error).__name__}){_place(error)}") from error
        return "".join(pieces)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses products and powers that take memory or time out of all proportion."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_small(left, 1 << 32) and _is_small(right, _MAX_EXPONENT)):
            raise SecurityError("power too large")
        if operator == "*":
            sequence, count = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(count, int) and _length(sequence) * count > _MAX_PRODUCT_LENGTH:
                raise SecurityError("product too long")
        return super().call_binop(context, operator, left, right)


class _Generation(jinja2.ext.Extension):
    """Reads `{% generation %}…{% endgeneration %}`, which marks an answer for training, as what is between them."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _is_small(value: object, bound: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= bound


def _length(value: object) -> int:
    return len(cast("Sequence[object]", value)) if isinstance(value, Sequence) else 0


def _strftime(now: Callable[[], datetime]) -> Callable[[object], str]:
    def strftime_now(form: object) -> str:
        return now().strftime(str(form))

    return strftime_now


def _raise(message: object) -> None:
    raise TemplateRejected(quotable(str(message), MAX_MESSAGE_CHARS))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON with characters and order as they are, unlike Jinja's own filter, which also escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _marked(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with a mark after the text of the last one."""
    if not messages:
        raise TemplateRejected("there is no final message to continue")
    final = dict(messages[-1])
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _END_MARK
    else:
        parts = [dict(part) for part in content or ()]
        texts = [part for part in parts if isinstance(part.get("text"), str)]
        if not texts:
            raise TemplateRejected("the final message has no text to continue")
        texts[-1]["text"] += _END_MARK
        final["content"] = parts
    return [*messages[:-1], final]


def _place(error: BaseException) -> str:
    """Say at which line of the template it happened, where Jinja tells."""
    line: int | None = None
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return _at_line(line)


def _at_line(line: int | None) -> str:
    return f" at line {line}" if line else ""
