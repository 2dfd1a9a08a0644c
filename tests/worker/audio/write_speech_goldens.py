"""Writes `speech_goldens.json`: what Silero VAD's own rules make of probabilities, in samples.

Run by hand, with the folder of the unpacked `silero-vad` wheel 6.2.3 and numpy:

    python -m tests.worker.audio.write_speech_goldens FOLDER_OF_THE_WHEEL
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

from tests.worker.audio.chances import CASES, chances

RULES = "get_speech_timestamps_from_probs"


def rules(folder: Path) -> Any:
    """Return that one function: the file around it imports torch."""
    tree = ast.parse((folder / "silero_vad" / "utils_vad.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == RULES]
    names: dict[str, Any] = {"List": list}
    exec(compile(tree, RULES, "exec"), names)
    return names[RULES]


def main() -> None:
    speech_of = rules(Path(sys.argv[1]))
    found = {case: speech_of(chances(case)) for case in CASES}
    stretches = {case: [[stretch["start"], stretch["end"]] for stretch in speech] for case, speech in found.items()}
    Path(__file__).with_name("speech_goldens.json").write_text(json.dumps(stretches) + "\n")


if __name__ == "__main__":
    main()
