"""How far packing is: what it will take first, then a bar on a terminal, lines elsewhere, JSON for programs."""

from collections.abc import Mapping
from typing import Any

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.progress import Display, Meter, display

PHASE_WORDS = {
    "checking": "looking at the weight files",
    "packing": "packing experts",
    "syncing": "bringing it to the disk",
    "comparing": "comparing",
}


class PackDisplay:
    """Shows what is said of a packing.

    Args:
        name: of the model.
        as_json: print an object on standard output for each message but the last.

    Attributes:
        pack: facts of the last message.
    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        self.pack: Mapping[str, Any] = {}
        self._name = name
        self._as_json = as_json
        self._meter = Meter()
        self._shown: Display | None = None
        self._plan: Mapping[str, Any] | None = None

    def take(self, what: str, facts: Mapping[str, Any]) -> None:
        """Take a message: `plan`, `stale`, `progress` or `pack`."""
        if what == "pack":
            self.pack = facts
        elif self._as_json:
            output.emit({what: {**facts, "bytesPerSecond": self._rate(facts)} if what == "progress" else facts})
        elif what == "plan":
            self._plan = facts
        elif what == "stale":
            output.notice(f"{self._name}: {facts['why']}; it is made anew")
        else:
            self._tell_plan()
            self._show(facts)

    def close(self) -> None:
        """Show nothing more."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def _tell_plan(self) -> None:
        """Say what will be written, now that something is: where a pack is kept, nothing is."""
        if self._plan is not None:
            needed, free = (output.bytes_text(int(self._plan[key])) for key in ("neededBytes", "freeBytes"))
            count = output.counted(int(self._plan["tensors"]), "tensor")
            output.notice(
                f"{self._name}: {count} of experts; the pack needs {needed} of the disk, where {free} are free"
            )
            self._plan = None

    def _show(self, facts: Mapping[str, Any]) -> None:
        if self._shown is None:
            self._shown = display(self._name)
        self._shown.update(_as_load(facts))

    def _rate(self, facts: Mapping[str, Any]) -> int | None:
        reading = self._meter.read(_as_load(facts))
        return None if reading is None or reading.bytes_per_second is None else round(reading.bytes_per_second)


def _as_load(facts: Mapping[str, Any]) -> model_pb2.Model:
    """Return the model that would show the same progress while it loads."""
    phase = str(facts["phase"])
    progress = model_pb2.LoadProgress(
        phase=PHASE_WORDS.get(phase, phase), bytes_done=int(facts["bytesDone"]), bytes_total=int(facts["bytesTotal"])
    )
    return model_pb2.Model(state=model_pb2.MODEL_STATE_LOADING, load_progress=progress)
