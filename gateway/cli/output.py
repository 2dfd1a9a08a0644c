"""Printing: answers on standard output, everything about them on standard error."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

# Wide enough that a table read by a program is never folded.
PIPE_WIDTH = 1000
MARK_WIDTH = 4
NAME_WIDTH = 10


def notice(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def line(text: str = "") -> None:
    """Print a line on standard output."""
    write(text + "\n")


def write(text: str) -> None:
    """Print text on standard output at once, as it came: an answer appears token by token."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def printable(text: str) -> str:
    """Replace control characters, so that what a model writes cannot steer the terminal."""
    return "".join(each if each in "\n\t" or each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def as_dict(message: Message) -> dict[str, Any]:
    """Return a message in protobuf's JSON form (lowerCamelCase keys, 64-bit numbers as strings), no key left out."""
    return MessageToDict(message, always_print_fields_with_no_presence=True)


def emit(value: Message | Mapping[str, Any], *, indent: int | None = None) -> None:
    """Print a message or a mapping as JSON; without `indent` it takes one line."""
    document = as_dict(value) if isinstance(value, Message) else value
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """Return a console for this moment's standard output or error; what is piped is not folded to a screen."""
    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, stderr: bool = False) -> None:
    """Print rows in columns."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(header, overflow="fold")
    for row in rows:
        grid.add_row(*(printable(cell) for cell in row))
    _print(grid, stderr=stderr)


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns, leaving out those without a value."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value:
            grid.add_row(name, printable(value))
    _print(grid)


def page(shown: RenderableType) -> None:
    """Print what is not to be drawn again."""
    _print(shown)


def _print(grid: RenderableType, *, stderr: bool = False) -> None:
    """Print columns without the blanks that fill the last one."""
    screen = console(stderr=stderr)
    with screen.capture() as capture:
        screen.print(grid)
    stream = sys.stderr if stderr else sys.stdout
    stream.write("".join(f"{each.rstrip()}\n" for each in capture.get().splitlines()))
    stream.flush()


def styled(text: str, style: str) -> None:
    """Print a line on standard output, in a rich style where that is a terminal."""
    console().print(printable(text), style=style, soft_wrap=True)


def marked(mark: Text, name: str, *texts: str) -> None:
    """Print a mark, a name and texts below each other, folded to the screen without leaving their column."""
    grid = Table.grid(padding=(0, 1))
    for width in (MARK_WIDTH, NAME_WIDTH, None):
        grid.add_column(width=width, overflow="fold")
    grid.add_row(mark, name, printable(texts[0]))
    for text in texts[1:]:
        grid.add_row("", "", printable(text))
    _print(grid)


def enum_word(name_of: Callable[[Any], str], value: int, prefix: str) -> str:
    """Return an enum value's name in lower case without its prefix; a value of a newer server stays a number."""
    try:
        name = name_of(value)
    except ValueError:
        return str(value)
    return name.removeprefix(prefix).lower().replace("_", " ")


def counted(count: int, noun: str) -> str:
    """Return a number of things as people say it: 1 text, 2 texts."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def bytes_text(count: int) -> str:
    """Return a number of bytes as people read it: 98.2 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
