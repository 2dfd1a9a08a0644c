import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.sockets import SocketFolder, remove_stale


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = SocketFolder(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.close()


def test_a_socket_path_is_short_enough_for_macos() -> None:
    folder = SocketFolder()
    assert len(str(folder.socket_path("0123456789ab")).encode()) < 104
    folder.close()


def test_a_closed_folder_is_gone_with_its_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SocketFolder(tmp_path)
    monkeypatch.chdir(folder.path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(folder.socket_path("a").name)
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_in_use_stay(tmp_path: Path) -> None:
    first, second = SocketFolder(tmp_path), SocketFolder(tmp_path)
    assert first.path.exists()
    assert second.path.exists()
    assert remove_stale(tmp_path) == []
    first.close()
    second.close()


def test_the_folder_of_a_killed_gateway_is_removed_at_the_next_start(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, socket, sys; from gateway.sockets import SocketFolder\n"
        "folder = SocketFolder(pathlib.Path(sys.argv[1])); os.chdir(folder.path)\n"
        "socket.socket(socket.AF_UNIX).bind('w-a.sock'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=False, timeout=30)
    (left,) = tmp_path.iterdir()
    folder = SocketFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    assert folder.path != left
    folder.close()


def test_a_folder_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    folder = SocketFolder(tmp_path)
    first = folder.path
    folder.restore()
    assert folder.path == first
    first.rmdir()
    folder.restore()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert remove_stale(tmp_path) == []
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_replaced_is_theirs(tmp_path: Path) -> None:
    folder = SocketFolder(tmp_path)
    first = folder.path
    first.rmdir()
    first.mkdir()
    folder.restore()
    assert folder.path != first
    folder.close()
    folder.restore()
    assert list(tmp_path.iterdir()) == [first]


def test_what_is_no_folder_of_a_gateway_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "pomona-models").mkdir()
    (tmp_path / "pomona-0123abcd").mkdir()
    (tmp_path / "pomona-0123abcd" / "notes").touch()
    (tmp_path / "pomona-file").touch()
    (tmp_path / "pomona-link").symlink_to(tmp_path / "else")
    assert remove_stale(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "else",
        "pomona-0123abcd",
        "pomona-file",
        "pomona-link",
        "pomona-models",
    ]
    assert (tmp_path / "pomona-0123abcd" / "notes").exists()
