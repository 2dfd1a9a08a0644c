"""What a checkpoint can do beside plain text, told from its chat template and the settings, and why not otherwise."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker.chat import ChatPrompt
from worker.dialects.choosing import UnknownDialectError, dialect_named, dialect_of
from worker.dialects.dialect import Dialect
from worker.dialects.history import HistoryForm, history_form
from worker.errors import ModelLoadFailed, UnsupportedOption
from worker.reasoning import MarksError, ReasoningMarks, marks_of
from worker.tools import Choice

NO_TEMPLATE = "the model has no chat template"
NO_MARKS = "the model's chat template has no marks around reasoning that this build knows"
NO_DIALECT = "the model's chat template has no way of writing tool calls that this build knows"
NO_TOOLS = "the model's chat template does not read tools"
NO_NAMES = "the model's chat template does not read names of messages"

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_TOOLS = re.compile(r"\btools\b")
_NAME = re.compile(r"""\bmessage(\.name\b|\[\s*['"]name['"])""")


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model can do beside plain text.

    Attributes:
        marks: around its reasoning; None: it does not reason apart.
        dialect: how it writes calls of tools; None: it calls none.
        history: how its template reads calls and their results.
        reads_names: whether its template reads the names of those who wrote messages.
        unavailable: by capability, why it has it not.
    """

    marks: ReasoningMarks | None = None
    dialect: Dialect | None = None
    history: HistoryForm = field(default_factory=HistoryForm)
    reads_names: bool = False
    unavailable: Mapping[str, str] = field(default_factory=dict[str, str])


def abilities_of(
    template: str | None, *, marks: str | Sequence[str] | None = None, dialect: str | None = None
) -> Abilities:
    """Return what a model can do.

    Args:
        template: Jinja source of its chat template; None: it has none.
        marks: of the settings; None: those of the template.
        dialect: of the settings, by name; None: that of the template.

    Raises:
        MarksError: the settings name no usable marks.
        UnknownDialectError: the settings name a dialect that there is not.
    """
    source = _COMMENT.sub("", template or "")
    found = marks_of(marks, None if template is None else source)
    spoken = dialect_of(source) if dialect is None else dialect_named(dialect)
    unavailable: dict[str, str] = {}
    if found is None:
        unavailable["reasoning"] = NO_TEMPLATE if template is None else NO_MARKS
    if template is None or spoken is None or _TOOLS.search(source) is None:
        unavailable["tool_calls"] = NO_TEMPLATE if template is None else NO_TOOLS if spoken else NO_DIALECT
        spoken = None
    return Abilities(found, spoken, history_form(source), _NAME.search(source) is not None, unavailable)


def told_abilities(
    template: str | None, *, reasoning_marks: str | Sequence[str] | None = None, tool_dialect: str | None = None
) -> Abilities:
    """Return what a model can do, as its chat template and the settings of these names say.

    Raises:
        ModelLoadFailed: the settings name no usable marks of reasoning, or no dialect of tool calls that there is.
    """
    try:
        return abilities_of(template, marks=reasoning_marks, dialect=tool_dialect)
    except MarksError as error:
        raise ModelLoadFailed(f"reasoning_marks: {error}", option="reasoning_marks") from error
    except UnknownDialectError as error:
        raise ModelLoadFailed(f"tool_dialect: {error}", option="tool_dialect") from error


def check_chat(chat: ChatPrompt, abilities: Abilities) -> None:
    """Refuse what the model's template would leave out.

    Args:
        chat: a checked chat.
        abilities: of the model.

    Raises:
        UnsupportedOption: it names the field.
    """
    if abilities.dialect is None and chat.tools.declared and chat.tools.choice is not Choice.NONE:
        raise UnsupportedOption(f"{chat.path}.tools", abilities.unavailable["tool_calls"])
    for index, message in enumerate(chat.messages):
        path = f"{chat.path}.messages[{index}]"
        if abilities.marks is None and "reasoning_content" in message:
            raise UnsupportedOption(f"{path}.reasoning", abilities.unavailable["reasoning"])
        if abilities.dialect is None and "tool_calls" in message:
            raise UnsupportedOption(f"{path}.tool_calls", abilities.unavailable["tool_calls"])
        if not abilities.reads_names and "name" in message and message["role"] != "tool":
            raise UnsupportedOption(f"{path}.name", NO_NAMES)
