"""`chat`: one question, or a conversation."""

import sys
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import Connection, ServerOptions, connect
from gateway.cli.conversation import converse
from gateway.cli.failures import UsageError
from gateway.cli.generation import SamplingOptions, SpeedOptions, set_logprobs
from gateway.cli.verb import verb


@verb
def chat(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="- reads it from standard input.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    sampling: SamplingOptions,
    speed: SpeedOptions,
    logprobs: Annotated[
        int | None,
        typer.Option(metavar="K", help="Show how likely each token was, and the K likeliest in its place (0 to 20)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
    server: ServerOptions,
) -> None:
    """Ask a model, once or in a conversation.

    With PROMPT, or with text on standard input, it prints one answer as it
    comes. Without, it talks: /help lists what it understands, Ctrl-C ends an
    answer, Ctrl-D the conversation. Statistics go to standard error, and so
    does the table of --logprobs: every token with its log-probability.

    Of several answers (--sequences) the first is printed as it comes, and each
    of the others once those before it are done.

    With --json: one pomona.v1.StreamGenerateResponse a line in protobuf's JSON
    form, with "sequenceIndex" and, where asked for, each token's "logprob" and
    "alternatives". The last line has "completed", or where the stream failed it is
    {"error": {"code", "reason", "message", ...}}.

    Example:
    [bold]pomona chat smollm2 "Why is the sky blue?" --max-tokens 60[/bold]
    [bold]pomona chat smollm2 < question.txt[/bold]
    [bold]pomona chat smollm2 "Name a colour." -n 3 --logprobs 2 --seed 7[/bold]
    """
    question = _question(prompt)
    given = {"--json": as_json, "--sequences": sampling.sequences is not None, "--logprobs": logprobs is not None}
    if question is None and any(given.values()):
        raise UsageError(f"{next(name for name, is_given in given.items() if is_given)} needs a PROMPT")
    start = generation_pb2.StreamGenerateRequest(model=model)
    sampling.apply(start.spec)
    speed.apply(start.spec)
    set_logprobs(start.spec, logprobs)
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
    printer = Printer(as_json=as_json, num_sequences=start.spec.sampling.num_sequences or 1)
    stream_answer(connection, start, printer)
