"""`chat`: one question, or a conversation."""

import sys
from typing import Annotated

import typer
from pomona.v1 import generation_pb2

from gateway.cli.adapter_options import AdapterOptions
from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.constraint import ConstraintOptions
from gateway.cli.conversation import converse
from gateway.cli.failures import UsageError
from gateway.cli.fields import is_text
from gateway.cli.generation import SpeedOptions, set_logprobs
from gateway.cli.reasoning import ReasoningOptions
from gateway.cli.sampling import SamplingOptions
from gateway.cli.stopping import StoppingOptions
from gateway.cli.tools import ToolOptions
from gateway.cli.verb import verb


@verb
def chat(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="- reads it from standard input.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    adapters: AdapterOptions,
    sampling: SamplingOptions,
    stopping: StoppingOptions,
    constraint: ConstraintOptions,
    tools: ToolOptions,
    reasoning: ReasoningOptions,
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
    answer, Ctrl-D the conversation.

    Standard output has the answer and the tool calls in it, a line each;
    reasoning, statistics and the table of --logprobs (every token with its
    log-probability) go to standard error. Of several answers (--sequences) the
    first is printed as it comes, and each of the others once those before it
    are done. In a conversation you give the results of the tools yourself.

    With --json: one pomona.v1.StreamGenerateResponse a line in protobuf's JSON
    form, tool calls and reasoning among them. The last line has "completed", or,
    where the answer failed or Ctrl-C ended it (code CANCELLED, exit code 130), it
    is {"error": {"code", "reason", "message", ...}}.

    Example:
    [bold]pomona chat smollm2 "Why is the sky blue?" --max-tokens 60[/bold]
    [bold]pomona chat smollm2 < question.txt[/bold]
    [bold]pomona chat smollm2 "Name a colour." -n 3 --logprobs 2 --seed 7[/bold]
    [bold]pomona chat smollm2 "Invent a person." --schema person.json[/bold]
    [bold]pomona chat smollm2 "Hello." --adapter formal --adapter terse:0.5[/bold]
    [bold]pomona chat qwen3 "Weather in Rome?" --tools tools.json[/bold]
    """
    question = _question(prompt)
    given = {"--json": as_json, "--sequences": sampling.sequences is not None, "--logprobs": logprobs is not None}
    if question is None and any(given.values()):
        raise UsageError(f"{next(name for name, is_given in given.items() if is_given)} needs a PROMPT")
    start = generation_pb2.StreamGenerateRequest(model=model)
    for options in (sampling, stopping, constraint, tools, reasoning, speed):
        options.apply(start.spec)
    adapters.apply(start)
    set_logprobs(start.spec, logprobs)
    if system is not None:
        start.spec.chat.messages.add(role=generation_pb2.ROLE_SYSTEM, text=system)
    with connect(server) as connection:
        if question is None:
            converse(connection, start, hide_reasoning=reasoning.hide_reasoning)
            return
        start.spec.chat.messages.add(role=generation_pb2.ROLE_USER, text=question)
        printer = Printer(
            as_json=as_json,
            num_sequences=start.spec.sampling.num_sequences or 1,
            hide_reasoning=reasoning.hide_reasoning,
        )
        stream_answer(connection, start, printer)


def _question(prompt: str | None) -> str | None:
    """Return the one question to ask, or None for a conversation."""
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        return None
    text = _standard_input().strip()
    if not text:
        raise UsageError("standard input holds no prompt")
    return text


def _standard_input() -> str:
    """Return all of standard input."""
    problem = "standard input holds bytes that are not UTF-8"
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(problem) from error
    if not is_text(text):
        raise UsageError(problem)
    return text
