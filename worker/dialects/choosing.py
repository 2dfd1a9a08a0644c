"""Which dialect a checkpoint writes: from the source of its chat template, or by a name in the settings."""

from collections.abc import Mapping

from worker.dialects.dialect import Dialect
from worker.dialects.gemma4 import Gemma4
from worker.dialects.glm import Glm
from worker.dialects.hermes import Hermes
from worker.dialects.llama3_json import Llama3Json
from worker.dialects.llama3_pythonic import Llama3Pythonic
from worker.dialects.minicpm import MiniCpm
from worker.dialects.minicpm5 import MiniCpm5
from worker.dialects.mistral import Mistral
from worker.dialects.qwen3_coder import Qwen3Coder

DIALECTS: tuple[Dialect, ...] = (
    Hermes(),
    Qwen3Coder(),
    Llama3Json(),
    Llama3Pythonic(),
    Mistral(),
    Mistral("mistral_array", is_array=True),
    Gemma4(),
    Glm(),
    Glm("glm_inline", has_lines=False),
    MiniCpm(),
    MiniCpm5(),
)
_BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}
# The first row all of whose texts are in the template decides. What several dialects share comes last.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|tool_call>", "<tool_call|>"), "gemma4"),
    (("<function name=", "<param name="), "minicpm5"),
    (("<|tool_call_start|>", "```python"), "minicpm"),
    (("<arg_key>", "<tool_call>{function-name}\n<arg_key>"), "glm"),
    (("<arg_key>", "<tool_call>{function-name}\\n<arg_key>"), "glm"),
    (("<arg_key>",), "glm_inline"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral"),
    (("[TOOL_CALLS]",), "mistral_array"),
    (("<tool_call>", "tool_calls"), "hermes"),
    (("[func_name1(",), "llama3_pythonic"),
    (("<|start_header_id|>", "tool_calls", '"parameters": '), "llama3_json"),
)


class UnknownDialectError(LookupError):
    """Raised when settings name a dialect that there is not."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no dialect of tool calls is called {name!r}; there are {', '.join(_BY_NAME)}")
        self.name = name


def dialect_named(name: str) -> Dialect:
    """Return a dialect by its name.

    Raises:
        UnknownDialectError: there is none.
    """
    if name not in _BY_NAME:
        raise UnknownDialectError(name)
    return _BY_NAME[name]


def dialect_of(template: str) -> Dialect | None:
    """Return the dialect that a chat template writes calls in; None: it writes none, or none that is known.

    Args:
        template: its source.
    """
    for signs, name in _SIGNS:
        if all(sign in template for sign in signs):
            return _BY_NAME[name]
    return None
