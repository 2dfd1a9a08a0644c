"""How far a transcription is, in seconds of audio: a bar on a terminal, nothing elsewhere."""

import sys

from pomona.v1 import transcription_pb2
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.cli import output
from gateway.cli.spans import seconds_of


class AudioBar:
    """A bar on standard error that disappears at the end; where that is no terminal there is none.

    Args:
        name: of the recording.
        total_s: how long it is in seconds; None where only the end of the upload will tell.
    """

    def __init__(self, name: str, total_s: float | None) -> None:
        self._name = output.printable(name)
        self._total_s = total_s
        self._is_shown = output.console(stderr=True).is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[times]}"),
            TimeElapsedColumn(),
            console=output.console(stderr=True),
            transient=True,
            # Lines of text that go to the same terminal stand above the bar; a pipe gets them as they are.
            redirect_stdout=sys.stdout.isatty(),
            disable=not self._is_shown,
        )
        self._task = self._progress.add_task(f"{self._name}: waiting for the model", total=None, times="")
        self._progress.start()

    def begin(self, *, is_live: bool = False) -> None:
        """Show that the model is ready; what is spoken now has no end to come nearer to, and needs no bar."""
        if is_live:
            self.close()
            if self._is_shown:
                output.notice("listening; Ctrl-C ends it")
            return
        self._progress.update(self._task, description=self._name, refresh=True)

    def update(self, progress: transcription_pb2.TranscriptionProgress, *, is_sent: bool) -> None:
        """Move the bar.

        Args:
            progress: what the server says.
            is_sent: whether all audio has left, so that what was received is all there is.
        """
        total_s = self._total_s
        if total_s is None and is_sent:
            total_s = seconds_of(progress.audio_received) or None
        done_s = seconds_of(progress.audio_processed)
        times = clock(done_s) if total_s is None else f"{clock(done_s)} of {clock(total_s)}"
        self._progress.update(self._task, completed=done_s, total=total_s, times=times, refresh=True)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def clock(seconds: float) -> str:
    """Return a length of audio as people read it: 3:07, or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
