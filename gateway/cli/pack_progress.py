"""How far packing is: what it will take first, then a bar on a terminal, lines elsewhere, JSON for programs."""

from collections.abc import Mapping
from typing import Any

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.local_work import WorkDisplay
from gateway.cli.progress import Meter

PHASE_WORDS = {
    "checking": "looking at the weight files",
    "packing": "packing experts",
    "syncing": "bringing it to the disk",
    "comparing": "comparing",
}


class PackDisplay(WorkDisplay):
    """Shows what is said of a packing; see `WorkDisplay`."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        super().__init__(name, "pack", as_json=as_json)
        self._meter = Meter()
        self._plan: Mapping[str, Any] | None = None

    def facts_for_programs(self, what: str, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return them, of progress with its rate."""
        return {**facts, "bytesPerSecond": self._rate(facts)} if what == "progress" else facts

    def tell(self, what: str, facts: Mapping[str, Any]) -> None:
        """Say why a pack that is there does not do; a plan is told once something is written."""
        if what == "stale":
            output.notice(f"{self.name}: {facts['why']}; it is made anew")
        else:
            self._plan = facts

    def before_progress(self) -> None:
        """Say what will be written, now that something is: where a pack is kept, nothing is."""
        if self._plan is not None:
            needed, free = (output.bytes_text(int(self._plan[key])) for key in ("neededBytes", "freeBytes"))
            count = output.counted(int(self._plan["tensors"]), "tensor")
            output.notice(
                f"{self.name}: {count} of experts; the pack needs {needed} of the disk, where {free} are free"
            )
            self._plan = None

    def progress(self, facts: Mapping[str, Any]) -> model_pb2.LoadProgress:
        """See `WorkDisplay.progress`."""
        phase = str(facts["phase"])
        done, total = int(facts["bytesDone"]), int(facts["bytesTotal"])
        return model_pb2.LoadProgress(phase=PHASE_WORDS.get(phase, phase), bytes_done=done, bytes_total=total)

    def _rate(self, facts: Mapping[str, Any]) -> int | None:
        loading = model_pb2.Model(state=model_pb2.MODEL_STATE_LOADING, load_progress=self.progress(facts))
        reading = self._meter.read(loading)
        return None if reading is None or reading.bytes_per_second is None else round(reading.bytes_per_second)
