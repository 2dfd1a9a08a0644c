"""The real Whisper that `make setup` installs: base, float16, CTranslate2's layout, its model.bin in two wheels."""

from pathlib import Path

from gateway.cli.demo_models import whisper_base

_FOLDER = Path(__file__).parents[2] / "build" / "whisper-base"


def whisper_base_path() -> Path:
    """Return the folder, its parts joined at the first call; tests that need it fail without the wheels."""
    return whisper_base(_FOLDER)
