"""Prepares what leads the output of a request: its grammar, its guide through reasoning, and how its text is read."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from worker.abilities import Abilities
from worker.chat import THINKING, ChatPrompt
from worker.constraints.compiler import CompiledGrammar, GrammarCompiler
from worker.constraints.grammar import Grammar
from worker.dialects.dialect import Dialect, ToolParser
from worker.errors import DeadlineExceeded, FieldError
from worker.guide import Guide, MarkTokens
from worker.output import OutputFormat
from worker.prompting import Tokenized
from worker.reasoning import Start, start_of, start_of_answer, start_of_chat
from worker.sequence import Constraint
from worker.steering import Steering
from worker.tools import ToolUse
from worker.validation import Generation, Prompt

# More than any mark and the line breaks behind it take.
TAIL_TOKENS = 32
TOOL_CHOICE = "spec.chat.tool_choice"
SCHEMA_OF_TOOL = "spec.chat.tools[{}].parameters_json_schema"


class TokenTexts(Protocol):
    """The part of a tokenizer that leading needs."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to a text; nothing for a special one."""
        ...

    def special_bytes(self, token_id: int) -> bytes:
        """Return the text of a special token; nothing for any other."""
        ...


@dataclass(frozen=True, slots=True)
class Lead:
    """How one request is led.

    Attributes:
        form: how its output is read.
        make_constraint: makes what restricts one of its sequences; None: nothing does.
    """

    form: OutputFormat
    make_constraint: Callable[[], Constraint] | None


class Steerer:
    """Leads the requests of one model.

    Args:
        abilities: of the model.
        tokenizer: of the model.
        make_compiler: makes what compiles grammars, on a thread of its own, once the first comes: it reads all tokens.
        vocab_size: token ids are below it.
        end_ids: what ends a text.
    """

    def __init__(
        self,
        abilities: Abilities,
        tokenizer: TokenTexts,
        make_compiler: Callable[[], GrammarCompiler],
        vocab_size: int,
        *,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._abilities = abilities
        self._tokenizer = tokenizer
        self._make_compiler = make_compiler
        self._making: asyncio.Task[GrammarCompiler] | None = None
        marks = abilities.marks
        self._special = self._special_tokens((marks.open, marks.close) if marks is not None else ())
        self._call_special = self._special_tokens(abilities.dialect.marks if abilities.dialect is not None else ())
        self._marks = None
        if marks is not None:
            shown = _shown(self._special)
            self._marks = MarkTokens(marks, self._encode, tokenizer.token_bytes, shown, vocab_size, end_ids=end_ids)

    async def lead(self, generation: Generation, tokenized: Tokenized, timeout_s: float | None) -> Lead:
        """Prepare what leads the sequences of one request.

        Args:
            generation: a checked one.
            tokenized: its prompt.
            timeout_s: what is left of the caller's deadline; None: no deadline.

        Raises:
            ConstraintInvalid: the constraint, or the schema of a tool that must be called, is wrong.
            ConstraintTooComplex: it is over its limits.
            DeadlineExceeded: it took too long for the caller.
            QueueFull: too many wait.
            ConstraintBusy: there is no time or memory for it now.
            UnsupportedOption: it says what is not enforced.
        """
        steering = generation.steering
        start = self._start(generation.prompt, tokenized)
        grammar = self._grammar(steering)
        if grammar is not None and start is Start.BEFORE and _is_thinking_off(generation.prompt):
            start = Start.BEHIND
        try:
            async with asyncio.timeout(timeout_s):
                compiled = None if grammar is None else await self._compiled(grammar, generation)
        except TimeoutError:
            raise DeadlineExceeded from None
        return Lead(
            self._form(steering.tools, start, is_restricted=compiled is not None),
            self._constraint_maker(compiled, start, steering.max_reasoning_tokens),
        )

    async def close(self) -> None:
        """Compile nothing more."""
        if self._making is not None:
            with contextlib.suppress(Exception):
                await (await self._making).close()

    async def _compiled(self, grammar: Grammar, generation: Generation) -> CompiledGrammar:
        try:
            return await self._compile(grammar, generation.num_sequences)
        except FieldError:
            # Where one tool's schema is at fault, that is what the caller can mend.
            tools = generation.steering.tools
            names = {tool.name for tool in tools.required}
            for index, tool in enumerate(tools.declared):
                if tool.name in names and tool.schema:
                    path = SCHEMA_OF_TOOL.format(index)
                    await self._compile(Grammar("json_schema", json.dumps(tool.schema), path), 1)
            raise

    async def _compile(self, grammar: Grammar, num_sequences: int) -> CompiledGrammar:
        if self._making is None or (self._making.done() and self._making.exception() is not None):
            self._making = asyncio.create_task(asyncio.to_thread(self._prepare), name="grammars")
        # A caller that goes away leaves it to those who come after: it reads all tokens, once.
        compiler = await asyncio.shield(self._making)
        return await compiler.compile(grammar, None, num_sequences)

    def _prepare(self) -> GrammarCompiler:
        if self._marks is not None:
            _ = self._marks.unmixed
        return self._make_compiler()

    def _start(self, prompt: Prompt, tokenized: Tokenized) -> Start:
        marks, rendering = self._abilities.marks, tokenized.rendering
        if marks is None:
            return Start.BEHIND
        if rendering is None:
            tail = b"".join(self._bytes(token_id) for token_id in tokenized.ids[-TAIL_TOKENS:])
            return start_of(tail.decode(errors="replace"), marks)
        if not (isinstance(prompt, ChatPrompt) and prompt.continue_final_message):
            return start_of_chat(rendering.text, rendering.tail, marks)
        begun: str = prompt.messages[-1]["content"]
        return start_of_answer(begun, marks) if begun.strip() else start_of(rendering.text, marks)

    def _grammar(self, steering: Steering) -> Grammar | None:
        dialect, required = self._abilities.dialect, steering.tools.required
        if dialect is None or not required:
            return steering.constraint
        special = {text: token_id for token_id, text in self._call_special.items()}
        return Grammar("lark", dialect.grammar(required, special), TOOL_CHOICE)

    def _form(self, tools: ToolUse, start: Start, *, is_restricted: bool) -> OutputFormat:
        dialect = self._abilities.dialect
        if dialect is None or not tools.offered:
            return OutputFormat(self._abilities.marks, start, is_restricted, None, _shown(self._special))
        shown = _shown({**self._special, **self._call_special})
        return OutputFormat(self._abilities.marks, start, is_restricted, _parser_maker(dialect, tools), shown)

    def _constraint_maker(
        self, compiled: CompiledGrammar | None, start: Start, budget: int | None
    ) -> Callable[[], Constraint] | None:
        marks = self._marks
        if marks is None or start is Start.BEHIND or (compiled is None and budget is None):
            return None if compiled is None else compiled.start
        return lambda: Guide(marks, start, budget=budget, content=None if compiled is None else compiled.start())

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _bytes(self, token_id: int) -> bytes:
        return self._tokenizer.special_bytes(token_id) or self._tokenizer.token_bytes(token_id)

    def _special_tokens(self, marks: tuple[str, ...]) -> dict[int, str]:
        """Return the special tokens that marks are written with."""
        ids = {token_id for mark in marks for token_id in self._encode(mark)}
        texts = {token_id: self._tokenizer.special_bytes(token_id).decode() for token_id in ids}
        return {token_id: text for token_id, text in texts.items() if text}


def _is_thinking_off(prompt: Prompt) -> bool:
    """Whether the request wants no reasoning, so that a grammar begins at once."""
    return isinstance(prompt, ChatPrompt) and prompt.variables.get(THINKING) is False


def _shown(special: Mapping[int, str]) -> dict[int, bytes]:
    return {token_id: text.encode() for token_id, text in special.items()}


def _parser_maker(dialect: Dialect, tools: ToolUse) -> Callable[[], ToolParser]:
    by_name = {tool.name: tool for tool in tools.declared}
    return lambda: dialect.parser(by_name)
