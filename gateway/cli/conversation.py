"""A conversation in the terminal: the history is kept here and sent whole with every turn."""

import sys

import grpc
from pomona.v1 import generation_pb2

from gateway.cli import output
from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import Connection
from gateway.cli.failures import failure_of

PROMPT = "> "
HELP = """/reset          forget the conversation
/system TEXT    start anew with this system message; without TEXT, with none
/quit           leave (Ctrl-D too)
Ctrl-C          end the answer"""


def converse(connection: Connection, start: generation_pb2.StreamGenerateRequest) -> None:
    """Take questions from the terminal until it ends.

    Args:
        connection: an open connection.
        start: what every request begins with; a system message in it opens the conversation.
    """
    _enable_line_editing()
    output.notice(f"talking to {start.model}; /help for help, Ctrl-D to leave")
    conversation = _Conversation(connection, start)
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
        if line:
            conversation.take(line)


class _Conversation:
    def __init__(self, connection: Connection, start: generation_pb2.StreamGenerateRequest) -> None:
        self._connection = connection
        self._request = start
        self._opening = len(start.spec.chat.messages)

    def take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self._reset()
        elif word == "/system":
            self._set_system(rest.strip())
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

    def _ask(self, question: str) -> None:
        messages = self._request.spec.chat.messages
        messages.add(role=generation_pb2.ROLE_USER, text=question)
        printer = Printer()
        try:
            stream_answer(self._connection, self._request, printer)
        except KeyboardInterrupt:
            output.notice("(ended)")
        except grpc.RpcError as error:
            output.notice(f"error: {failure_of(error, self._connection.address)}")
        if printer.text:
            messages.add(role=generation_pb2.ROLE_ASSISTANT, text=printer.text)
        else:
            # Nothing was answered, so nothing was said: the next question starts from the same place.
            del messages[-1]


def _enable_line_editing() -> None:
    if sys.stdin.isatty():
        import readline

        readline.set_auto_history(True)
