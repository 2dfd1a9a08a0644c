"""`chat`: one question, or a conversation."""

import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.conversation import converse
from gateway.cli.failures import UsageError
from gateway.cli.verb import verb

_PANEL = "Sampling (unset: the model's own defaults)"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen and when the answer stops; what is unset is left to the model."""

    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.", rich_help_panel=_PANEL)] = None
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest.", rich_help_panel=_PANEL)] = (
        None
    )
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest with this share.", rich_help_panel=_PANEL)
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same answer.", rich_help_panel=_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the answer before this text; may repeat.", rich_help_panel=_PANEL),
    ] = None

    def apply(self, spec: generation_pb2.GenerationSpec) -> None:
        """Write what is set into `spec`."""
        for name in ("temperature", "top_p", "seed"):
            if (value := getattr(self, name)) is not None:
                setattr(spec.sampling, name, value)
        if self.max_tokens is not None:
            if not 0 <= self.max_tokens < 2**32:
                raise UsageError("--max-tokens: not within 0 to 4294967295")
            spec.stopping.max_tokens = self.max_tokens
        if self.stop:
            spec.stopping.stop_strings.extend(self.stop)


@verb
def chat(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="- reads it from standard input.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    sampling: SamplingOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
    server: ServerOptions,
) -> None:
    """Ask a model, once or in a conversation.

    With PROMPT, or with text on standard input, it prints one answer as it
    comes. Without, it talks: /help lists what it understands, Ctrl-C ends an
    answer, Ctrl-D the conversation. Statistics go to standard error.

    With --json: one pomona.v1.StreamGenerateResponse a line in protobuf's JSON
    form. The last line has "completed", or where the stream failed it is
    {"error": {"code", "reason", "message", ...}}.

    Example:
    [bold]pomona chat smollm2 "Why is the sky blue?" --max-tokens 60[/bold]
    [bold]pomona chat smollm2 < question.txt[/bold]
    """
    question = _question(prompt)
    if question is None and as_json:
        raise UsageError("--json needs a PROMPT")
    start = generation_pb2.StreamGenerateRequest(model=model)
    sampling.apply(start.spec)
    if system is not None:
        start.spec.chat.messages.add(role=generation_pb2.ROLE_SYSTEM, text=system)
    with connect(server) as connection:
        if question is None:
            converse(connection, start)
        else:
            _ask_once(connection, start, question, as_json=as_json)


def _question(prompt: str | None) -> str | None:
    """Return the one question to ask, or None for a conversation."""
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        return None
    text = sys.stdin.read().strip()
    if not text:
        raise UsageError("standard input holds no prompt")
    return text


def _ask_once(
    connection: Connection, start: generation_pb2.StreamGenerateRequest, question: str, *, as_json: bool
) -> None:
    start.spec.chat.messages.add(role=generation_pb2.ROLE_USER, text=question)
    stream_answer(connection, start, Printer(as_json=as_json))
