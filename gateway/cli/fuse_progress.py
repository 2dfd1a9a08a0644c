"""How far fusing is: what it will take first, then a bar on a terminal, lines elsewhere, JSON for programs."""

from collections.abc import Mapping
from typing import Any

from pomona.v1 import model_pb2

from gateway.cli import output
from gateway.cli.local_work import WorkDisplay

PHASE_WORDS = {
    "fusing": "writing weights",
    "syncing": "bringing them to the disk",
    "comparing": "comparing with the mounted adapter",
}
# Of these, what is counted is bytes.
IN_BYTES = "fusing"


class FuseDisplay(WorkDisplay):
    """Shows what is said of a fusing; see `WorkDisplay`."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        super().__init__(name, "fused", as_json=as_json)

    def tell(self, what: str, facts: Mapping[str, Any]) -> None:  # noqa: ARG002 - nothing but the plan is told
        """Say what will be written, and what becomes of packed layers."""
        needed, free = (output.bytes_text(int(facts[key])) for key in ("neededBytes", "freeBytes"))
        count = output.counted(int(facts["layers"]), "layer")
        output.notice(f"{self.name}: {count} changed; the folder needs {needed} of the disk, where {free} are free")
        unpacked, packed = int(facts["unpackedLayers"]), int(facts["packedLayers"])
        if unpacked:
            output.notice(f"{self.name}: {output.counted(unpacked, 'packed layer')} kept as floats, which is larger")
        if packed:
            output.notice(f"{self.name}: {output.counted(packed, 'layer')} packed again, which loses some of it")

    def progress(self, facts: Mapping[str, Any]) -> model_pb2.LoadProgress:
        """See `WorkDisplay.progress`."""
        phase = str(facts["phase"])
        shown = model_pb2.LoadProgress(phase=PHASE_WORDS.get(phase, phase))
        if phase == IN_BYTES:
            shown.bytes_done, shown.bytes_total = int(facts["done"]), int(facts["total"])
        return shown
