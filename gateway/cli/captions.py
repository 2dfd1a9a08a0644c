"""Live text on a terminal: what may still change is rewritten in place, what is final stands above it as a line."""

from pomona.v1 import transcription_pb2
from rich.live import Live
from rich.text import Text

from gateway.cli import output

# A second or two pass anyway before what is being said is heard again.
LAG_SHOWN_S = 5.0


class Captions:
    """Shows interim segments below the lines that are final.

    What will not change any more is in normal letters, the rest dimmed.
    """

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._live = Live(
            console=output.console(), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._open: dict[int, transcription_pb2.Segment] = {}

    def take(self, segment: transcription_pb2.Segment, line: str) -> None:
        """Show a segment.

        Args:
            segment: interim, or final.
            line: how a final one is written; empty for one in which nothing is said.
        """
        if not segment.final:
            self._open[segment.segment_id] = segment
        else:
            self._open.pop(segment.segment_id, None)
            if line:
                self._print(Text(output.printable(line.rstrip("\n"))))
        self._show()

    def show_lag(self, lag_s: float) -> None:
        """Show how far behind the speaker the server says it is, in seconds, where it is worth telling."""
        is_news = max(self._lag_s, lag_s) >= LAG_SHOWN_S
        self._lag_s = lag_s
        if is_news:
            self._show()

    def say(self, text: str) -> None:
        """Show a line about the stream."""
        self._print(Text(output.printable(text), style="dim"))
        self._show()

    def close(self) -> None:
        """Remove what is not final."""
        self._live.stop()

    def _show(self) -> None:
        self._live.start()
        self._live.update(self._interim(), refresh=True)

    def _print(self, text: Text) -> None:
        # What is open goes first, and is shown anew below: printed with the line it would not be folded.
        self._live.update(Text(""), refresh=True)
        self._live.console.print(text, soft_wrap=True)

    def _interim(self) -> Text:
        """Return what is open: the end of it where there is more than half a screen."""
        shown = Text()
        for segment in self._open.values():
            for text, style in ((segment.stable_text, ""), (segment.unstable_text, "dim")):
                line = output.printable(text.replace("\n", " "))
                shown.append(line if shown.plain else line.lstrip(), style)
        room = self._live.console.width * max(1, self._live.console.height // 2)
        if len(shown) > room:
            shown = shown[-room:]
        if self._lag_s >= LAG_SHOWN_S:
            shown.append(f" ({self._lag_s:.0f} s behind)", "dim italic")
        return shown
