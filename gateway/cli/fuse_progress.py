"""How far fusing is: what it will take first, then a bar on a terminal, lines elsewhere, JSON for programs."""

from collections.abc import Mapping
from typing import Any

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.progress import Display, display

PHASE_WORDS = {
    "fusing": "writing weights",
    "syncing": "bringing them to the disk",
    "comparing": "comparing with the mounted adapter",
}
# Of these, what is counted is bytes.
IN_BYTES = "fusing"


class FuseDisplay:
    """Shows what is said of a fusing.

    Args:
        name: of the model.
        as_json: print an object on standard output for each message but the last.

    Attributes:
        fused: facts of the last message.
    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        self.fused: Mapping[str, Any] = {}
        self._name = name
        self._as_json = as_json
        self._shown: Display | None = None

    def take(self, what: str, facts: Mapping[str, Any]) -> None:
        """Take a message: `plan`, `progress` or `fused`."""
        if what == "fused":
            self.fused = facts
        elif self._as_json:
            output.emit({what: facts})
        elif what == "plan":
            self._tell(facts)
        else:
            self._show(facts)

    def close(self) -> None:
        """Show nothing more."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def _tell(self, plan: Mapping[str, Any]) -> None:
        needed, free = (output.bytes_text(int(plan[key])) for key in ("neededBytes", "freeBytes"))
        count = output.counted(int(plan["layers"]), "layer")
        output.notice(f"{self._name}: {count} changed; the folder needs {needed} of the disk, where {free} are free")
        unpacked, packed = int(plan["unpackedLayers"]), int(plan["packedLayers"])
        if unpacked:
            output.notice(f"{self._name}: {output.counted(unpacked, 'packed layer')} kept as floats, which is larger")
        if packed:
            output.notice(f"{self._name}: {output.counted(packed, 'layer')} packed again, which loses some of it")

    def _show(self, facts: Mapping[str, Any]) -> None:
        if self._shown is None:
            self._shown = display(self._name)
        phase = str(facts["phase"])
        progress = model_pb2.LoadProgress(phase=PHASE_WORDS.get(phase, phase))
        if phase == IN_BYTES:
            progress.bytes_done, progress.bytes_total = int(facts["done"]), int(facts["total"])
        self._shown.update(model_pb2.Model(state=model_pb2.MODEL_STATE_LOADING, load_progress=progress))
