"""The file in which what callers chose outlives the server."""

import json
import os
from pathlib import Path

import pytest

from gateway.desired_adapters import DesiredAdapter
from gateway.model_status import Keeping, LoadOptions
from gateway.state_file import MAX_BYTES, DesiredModel, StateFile, StateInUse, state_folder, state_path

FULL = DesiredModel(
    LoadOptions(2048, 4, "turbo:k8v3", "slab", 1 << 33),
    Keeping(pinned=True, idle_ttl_s=12.5),
    {"formal": DesiredAdapter("formal", "org/formal-v2", pinned=True, revision="0a1b"), "terse": None},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "here.json"


def test_what_is_written_is_read_again(path: Path) -> None:
    written = {"a": FULL, "org/b": DesiredModel(keeping=Keeping(idle_ttl_s=0)), "c": DesiredModel(LoadOptions(100))}
    first = StateFile(path)
    assert first.read() == {}
    first.write(written)
    assert first.read() == written
    first.write({"a": FULL})
    first.close()
    second = StateFile(path)
    assert second.read() == {"a": FULL}
    second.close()


def test_only_this_user_may_read_it(path: Path) -> None:
    file = StateFile(path)
    file.write({"a": FULL})
    file.close()
    modes = {one.name: one.stat().st_mode & 0o777 for one in (path.parent, *path.parent.iterdir())}
    assert modes == {"state": 0o700, "here.json": 0o600, "here.lock": 0o600}


def test_two_do_not_have_it_at_once(path: Path) -> None:
    first = StateFile(path)
    with pytest.raises(StateInUse):
        StateFile(path)
    first.close()
    StateFile(path).close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"models": {}}',
        '{"version": 2, "models": {}}',
        '{"version": 1, "models": {"../etc": {}}}',
        '{"version": 1, "models": {"a": {"options": {"context_tokens": 0}}}}',
        '{"version": 1, "models": {"a": {"options": {"kv_scheme": "shoe"}}}}',
        '{"version": 1, "models": {"a": {"options": {"shoe_size": 43}}}}',
        '{"version": 1, "models": {"a": {"idle_ttl_s": -1}}}',
        '{"version": 1, "models": {"a": {"idle_ttl_s": NaN}}}',
        '{"version": 1, "models": {"a": {"pinned": "perhaps"}}}',
        '{"version": 1, "models": {"a": {"adapters": {"b": {"source": "/etc/passwd"}}}}}',
        '{"version": 1, "models": {"a": {"adapters": {"b": {"source": "../b"}}}}}',
        "x" * (MAX_BYTES + 1),
    ],
)
def test_one_that_is_broken_is_put_aside(path: Path, text: str) -> None:
    file = StateFile(path)
    path.write_text(text)
    with pytest.raises(ValueError, match=r".+") as caught:
        file.read()
    assert "passwd" not in str(caught.value)
    assert path.with_suffix(".broken").read_text() == text
    assert file.read() == {}
    file.close()


def test_a_write_that_fails_leaves_what_was_there(path: Path) -> None:
    file = StateFile(path)
    file.write({"a": FULL})
    path.with_suffix(".new").mkdir()
    with pytest.raises(OSError, match="directory"):
        file.write({})
    assert file.read() == {"a": FULL}
    file.close()


def test_links_in_its_place_are_not_followed(path: Path, tmp_path: Path) -> None:
    file = StateFile(path)
    path.with_suffix(".new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r".+"):
        file.write({"a": FULL})
    assert not (tmp_path / "elsewhere").exists()
    file.close()


def test_what_is_unset_is_not_written(path: Path) -> None:
    file = StateFile(path)
    file.write({"a": DesiredModel(LoadOptions(max_batch_rows=3))})
    assert json.loads(path.read_text()) == {"version": 1, "models": {"a": {"options": {"max_batch_rows": 3}}}}
    file.close()


@pytest.mark.parametrize(
    ("listen", "name"),
    [
        ("127.0.0.1:50051", "127.0.0.1-50051-"),
        ("[::1]:50051", "1-50051-"),
        ("unix:/run/pomona/pomona.sock", "unix-run-pomona-pomona.sock-"),
        ("unix:/run/x:0", "unix-run-x-0-"),
    ],
)
def test_each_address_has_a_file(listen: str, name: str) -> None:
    path = state_path(Path("/state"), listen)
    assert path is not None
    assert path.name.startswith(name)
    assert path != state_path(Path("/state"), listen + "1")


def test_a_server_at_any_free_port_keeps_nothing() -> None:
    assert state_path(Path("/state"), "127.0.0.1:0") is None


def test_the_folder_is_the_users() -> None:
    assert state_folder({"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/pomona")
    assert state_folder({}).is_relative_to(Path.home())


def test_a_pipe_in_its_place_holds_nobody_up(path: Path) -> None:
    file = StateFile(path)
    os.mkfifo(path)
    with pytest.raises(ValueError, match="it is no file"):
        file.read()
    assert file.read() == {}
    file.close()


def test_what_another_user_wrote_is_put_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StateFile(path)
    file.write({"a": FULL})
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
    if os.getuid() == 0:
        os.chown(path, 1, 1)
    with pytest.raises(ValueError, match="it belongs to another user"):
        file.read()
    file.close()
