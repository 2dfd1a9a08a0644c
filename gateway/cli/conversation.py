"""A conversation in the terminal: the history is kept here and sent whole with every turn."""

import sys
from collections.abc import Iterable

import grpc
from pomona.v1 import generation_pb2

from gateway.cli import output
from gateway.cli.adapter_options import read_uses
from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import Connection
from gateway.cli.failures import UsageError, failure_of
from gateway.cli.fields import is_text

PROMPT = "> "
HELP = """/reset          forget the conversation
/system TEXT    start anew with this system message; without TEXT, with none
/adapter NAMES  go on with these adapters, each NAME or NAME:SCALE; without NAMES, with none
/quit           leave (Ctrl-D too)
Ctrl-C          end the answer"""


def converse(
    connection: Connection, start: generation_pb2.StreamGenerateRequest, *, hide_reasoning: bool = False
) -> None:
    """Take questions from the terminal until it ends.

    Args:
        connection: an open connection.
        start: what every request begins with; a system message in it opens the conversation.
        hide_reasoning: print answers only.
    """
    _enable_line_editing()
    output.notice(f"talking to {start.model}; /help for help, Ctrl-D to leave")
    conversation = _Conversation(connection, start, hide_reasoning=hide_reasoning)
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            output.line()
            return
        except KeyboardInterrupt:
            output.notice("\n(Ctrl-D leaves)")
            continue
        if line == "/quit":
            return
        if not is_text(line):
            output.notice("(that is not UTF-8)")
        elif line:
            conversation.take(line)


class _Conversation:
    def __init__(
        self, connection: Connection, start: generation_pb2.StreamGenerateRequest, *, hide_reasoning: bool
    ) -> None:
        self._connection = connection
        self._request = start
        self._hides_reasoning = hide_reasoning
        self._opening = len(start.spec.chat.messages)
        self._choice = generation_pb2.ToolChoice()
        self._choice.CopyFrom(start.spec.chat.tool_choice)

    def take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self._reset()
        elif word == "/system":
            self._set_system(rest.strip())
        elif word == "/adapter":
            self._set_adapters(rest.split())
        elif word.startswith("/"):
            output.notice(HELP if word == "/help" else f"{word} is unknown\n{HELP}")
        else:
            self._ask(line)

    def _reset(self) -> None:
        del self._request.spec.chat.messages[self._opening :]
        output.notice("(forgotten)")

    def _set_system(self, text: str) -> None:
        messages = self._request.spec.chat.messages
        del messages[:]
        if text:
            messages.add(role=generation_pb2.ROLE_SYSTEM, text=text)
        self._opening = len(messages)
        output.notice("(a new conversation)")

    def _set_adapters(self, names: list[str]) -> None:
        try:
            uses = read_uses(names, "/adapter")
        except UsageError as error:
            output.notice(f"({error})")
            return
        del self._request.adapters[:]
        self._request.adapters.extend(uses)
        output.notice(f"(with {', '.join(names)})" if names else "(with the model itself)")

    def _ask(self, question: str) -> None:
        """Ask, and where the model calls tools, take their results from the terminal and go on."""
        chat = self._request.spec.chat
        messages, begin = chat.messages, len(chat.messages)
        if self._choice.mode:
            chat.tool_choice.CopyFrom(self._choice)
        messages.add(role=generation_pb2.ROLE_USER, text=question)
        try:
            while self._answer():
                self._take_results(messages[-1].tool_calls)
                # It has called what it had to; if it had to again, it would never answer.
                chat.ClearField("tool_choice")
        except (KeyboardInterrupt, EOFError):
            del messages[begin:]
            output.notice("\n(the question is forgotten)")
        if len(messages) == begin + 1:
            # Nothing was answered, so nothing was said: the next question starts from the same place.
            del messages[begin:]

    def _answer(self) -> bool:
        """Have one answer come and keep it; say whether it waits for the results of tools."""
        printer = Printer(hide_reasoning=self._hides_reasoning)
        is_whole = False
        try:
            stream_answer(self._connection, self._request, printer)
            is_whole = True
        except KeyboardInterrupt:
            output.notice("(ended)")
        except grpc.RpcError as error:
            output.notice(f"error: {failure_of(error, self._connection.address)}")
        calls = printer.first.calls if is_whole else []
        if printer.text or calls:
            said = self._request.spec.chat.messages.add(role=generation_pb2.ROLE_ASSISTANT, text=printer.text)
            said.tool_calls.extend(calls)
            # Templates leave out what their model is not to read again.
            said.reasoning = printer.first.reasoning
        return bool(calls)

    def _take_results(self, calls: Iterable[generation_pb2.ToolCall]) -> None:
        for call in calls:
            result = input(f"{call.name} gives{PROMPT}")
            self._request.spec.chat.messages.add(role=generation_pb2.ROLE_TOOL, text=result, tool_call_id=call.id)


def _enable_line_editing() -> None:
    if sys.stdin.isatty():
        import readline

        readline.set_auto_history(True)
