"""How far a download is: a bar on a terminal, lines elsewhere, JSON for programs."""

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.progress import Display, display

SKIPPED = "skipped"


class PullDisplay:
    """Shows the messages of a pull, but for the last.

    Args:
        name: of the model.
        as_json: print an object on standard output for each: {"progress": {...}}.
    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._shown: Display | None = None if as_json else display(name)

    def update(self, response: model_pb2.PullModelResponse) -> None:
        """Show one."""
        if self._shown is None:
            document = output.as_dict(response)
            output.emit({"progress": {key: value for key, value in document.items() if key != "model"}})
        elif response.phase == SKIPPED:
            output.notice(f"{self._name}: {response.file} is left out, {output.bytes_text(response.bytes_total)}")
        else:
            self._shown.update(_as_load(response))

    def close(self) -> None:
        """Show nothing more."""
        if self._shown is not None:
            self._shown.close()


def _as_load(response: model_pb2.PullModelResponse) -> model_pb2.Model:
    """Return the model that would show the same progress while it loads."""
    progress = model_pb2.LoadProgress(
        phase=response.phase, bytes_done=response.bytes_done, bytes_total=response.bytes_total
    )
    return model_pb2.Model(state=model_pb2.MODEL_STATE_LOADING, load_progress=progress)
