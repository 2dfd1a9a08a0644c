"""Where transcripts go: standard output, one file, or a file for each recording in a folder."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from gateway.cli import output
from gateway.cli.audio_source import STANDARD_INPUT, shown_name
from gateway.cli.failures import UsageError
from gateway.cli.suggestions import suggestion

FORMATS = ("txt", "srt", "vtt", "json", "tsv")
# Several of them one behind the other are no file of their kind.
_SINGLE = ("srt", "vtt", "tsv")


class Destination:
    """Takes the text of one transcript; a file is made when the first of it comes, so that a failure spoils none.

    Args:
        path: of the file; None for standard output.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file: IO[str] | None = None

    @property
    def is_file(self) -> bool:
        """Whether the text goes to a file."""
        return self._path is not None

    @property
    def is_screen(self) -> bool:
        """Whether the text goes to a terminal."""
        return self._path is None and output.console().is_terminal

    def write(self, text: str) -> None:
        """Write text at once: what is finished stays, whatever comes.

        Raises:
            UsageError: the file cannot be written.
        """
        if self._path is None:
            output.write(text)
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8", newline="\n")
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            raise UsageError(f"--output: cannot write {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file, where there is one."""
        if self._file is not None:
            self._file.close()


def format_name(chosen: str | None, to: str | None) -> str:
    """Return the format: the one chosen, or what the name of the output file ends in; txt where neither says.

    Raises:
        UsageError: there is none of that name.
    """
    if chosen is None:
        ending = "" if to is None or _is_folder(to) else Path(to).suffix.removeprefix(".")
        option, named = "--output", ending.lower() or FORMATS[0]
    else:
        option, named = "--format", chosen
    if named not in FORMATS:
        there_are = f"there are: {', '.join(FORMATS)}{suggestion(named, FORMATS)}"
        raise UsageError(f"{option}: no format is named {named!r}; {there_are}")
    return named


def destinations(files: Sequence[Path], to: str | None, name: str) -> list[Destination]:
    """Return where the transcript of each recording goes, in the format of that name; `-` is standard output.

    Raises:
        UsageError: several would go to one place, one over a recording, or one to where no folder is.
    """
    if to is None or to == "-":
        if len(files) > 1 and name in _SINGLE:
            raise UsageError(f"several transcripts in {name} make no file: add --output FOLDER/")
        return [Destination() for _ in files]
    if _is_folder(to):
        paths = [Path(to) / f"{_stem(file)}.{name}" for file in files]
    elif len(files) == 1:
        paths = [Path(to)]
    else:
        raise UsageError(
            f"--output: {to} is one file, and {len(files)} transcripts need a folder, such as {to}{os.sep}"
        )
    _check(files, paths)
    # A folder for transcripts is made; where it lies, or a file does, is there or was mistyped.
    there = Path(to) if to.endswith(os.sep) and os.path.lexists(Path(to)) else Path(to).parent
    if not _is_there(there):
        raise UsageError(f"--output: {there} is no folder")
    return [Destination(path) for path in paths]


def _is_folder(to: str) -> bool:
    return to.endswith(os.sep) or _is_there(Path(to))


def _is_there(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:  # such as a name that is too long for any
        return False


def _stem(file: Path) -> str:
    return "standard-input" if file == STANDARD_INPUT else file.stem


def _check(files: Sequence[Path], paths: Iterable[Path]) -> None:
    taken: dict[Path, Path] = {}
    recordings = {file.resolve() for file in files}
    for file, path in zip(files, paths, strict=True):
        if path in taken:
            both = f"{shown_name(taken[path])} and {shown_name(file)}"
            raise UsageError(f"--output: the transcripts of {both} would both be {path}")
        if path.resolve() in recordings:
            raise UsageError(f"--output: {path} is a recording, and would be overwritten")
        taken[path] = file
