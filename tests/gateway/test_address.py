"""Where the server may listen."""

import os
import socket
import stat
from pathlib import Path

import grpc.aio
import pytest

from gateway.address import ListenError, TcpAddress, UnixAddress, check_exposure, parse_address


def server() -> grpc.aio.Server:
    return grpc.aio.server(options=(("grpc.so_reuseport", 0),))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50051", TcpAddress("127.0.0.1", 50051)),
        ("127.0.0.9:0", TcpAddress("127.0.0.9", 0)),
        ("localhost:1", TcpAddress("localhost", 1)),
        ("[::1]:1", TcpAddress("::1", 1)),
        ("unix:/tmp/a.sock", UnixAddress(Path("/tmp/a.sock"))),
    ],
)
def test_loopback_and_sockets_are_read(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "example.org:1"])
def test_an_address_that_others_reach_wants_tls_and_tokens(text: str) -> None:
    address = parse_address(text)
    for has_tls, has_tokens, words in (
        (False, False, "it needs TLS .* and tokens"),
        (True, False, "it needs tokens"),
        (False, True, "it needs TLS"),
    ):
        with pytest.raises(ListenError, match=words):
            check_exposure(address, has_tls=has_tls, has_tokens=has_tokens, allow_plaintext=False)
        check_exposure(address, has_tls=has_tls, has_tokens=has_tokens, allow_plaintext=True)
    check_exposure(address, has_tls=True, has_tokens=True, allow_plaintext=False)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/a.sock"])
def test_an_address_of_this_machine_alone_wants_neither(text: str) -> None:
    check_exposure(parse_address(text), has_tls=False, has_tokens=False, allow_plaintext=False)


@pytest.mark.parametrize("text", ["", "127.0.0.1", ":1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1", "unix:"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ListenError):
        parse_address(text)


async def test_port_zero_becomes_the_port_that_was_taken() -> None:
    bound = TcpAddress("127.0.0.1", 0).bind(server())
    assert int(bound.rpartition(":")[2]) > 0


async def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ListenError, match="in use"):
            TcpAddress("127.0.0.1", other.getsockname()[1]).bind(server())


async def test_a_second_server_does_not_share_a_port() -> None:
    first = server()
    port = int(TcpAddress("127.0.0.1", 0).bind(first).rpartition(":")[2])
    await first.start()
    try:
        with pytest.raises(ListenError):
            TcpAddress("127.0.0.1", port).bind(server())
    finally:
        await first.stop(None)


async def test_a_socket_is_its_owners_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "a.sock")
    mask = os.umask(0)
    os.umask(mask)
    assert address.bind(server()) == f"unix:{tmp_path / 'a.sock'}"
    assert stat.S_IMODE(address.path.stat().st_mode) == 0o600
    assert os.umask(mask) == mask
    address.release()
    assert not address.path.exists()


async def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    inode = path.stat().st_ino, path.stat().st_mtime_ns
    UnixAddress(path).bind(server())
    assert (path.stat().st_ino, path.stat().st_mtime_ns) != inode


async def test_the_socket_of_a_living_server_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ListenError, match="another server"):
            UnixAddress(path).bind(server())
    assert path.exists()


async def test_a_file_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="no socket"):
        UnixAddress(path).bind(server())
    assert path.read_text() == "precious"


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ListenError):
        UnixAddress(tmp_path / "nowhere" / "a.sock").bind(server())
