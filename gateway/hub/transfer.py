"""Brings one file of a repository into the cache, and goes on where an earlier try was cut off.

What has come lies in `<digest>.incomplete` among the blobs, as older releases of huggingface_hub kept it; from 2.4 on
that library begins anew in every process. Once complete and checked it becomes the blob, and the library links it into
the snapshot. Files come by plain HTTP, whatever else the hub offers: only that can be continued.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status

from gateway.hub.access import file_address, link_into_snapshot, request_headers, silence_limit_s
from gateway.hub.cache import repository_folder
from gateway.hub.messages import Failed, Kind
from gateway.hub.meter import Meter
from gateway.hub.selection import RemoteFile

CHUNK_BYTES = 1024 * 1024
READ_BYTES = 8 * 1024 * 1024
# From here on it takes long enough to be told that a file is being checked.
LONG_BYTES = 256 * 1024 * 1024
# Pauses before another try; counted anew once something came.
PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)
PASSING_CODES = frozenset({408, 429, 500, 502, 503, 504})
OK = 200


@dataclass(frozen=True, slots=True)
class Transfer:
    """Downloads files of one commit.

    Attributes:
        repository: `organisation/name`.
        commit: which.
        cache: folder of the cache.
        meter: is told what has come.
    """

    repository: str
    commit: str
    cache: Path
    meter: Meter

    def missing_bytes(self, file: RemoteFile) -> int:
        """Return what of a file is not on this machine yet."""
        if self._pointer(file).exists() or (file.digest and self._blob(file).exists()):
            return 0
        try:
            have = self._partial(file).stat().st_size if file.digest else 0
        except OSError:
            have = 0
        return max(0, file.size - have)

    def fetch(self, file: RemoteFile) -> None:
        """Have a file in the snapshot; one that is there already costs nothing.

        Raises:
            Failed: what came is not what the hub says it is.
            HfHubHTTPError, TransportError: the hub refused, or broke off again and again.
        """
        if not self._pointer(file).exists():
            if file.digest and not self._blob(file).exists():
                self._download(file)
            link_into_snapshot(self.repository, file.name, self.commit, self.cache)
        self.meter.moved(file.name, file.size)

    def _download(self, file: RemoteFile) -> None:
        self._blob(file).parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._partial(file), lambda: self.meter.enter("waiting", file.name)) as stream:
            if self._blob(file).exists():  # another process was at it
                return
            self._fill(file, stream)
            if file.size >= LONG_BYTES:
                self.meter.enter("verifying", file.name)
            if _digest(stream, file) != file.digest:
                _emptied(stream)
                raise Failed(Kind.CORRUPT, f"{file.name} came otherwise than the hub says it is; pull it again")
            os.fsync(stream.fileno())
            self._partial(file).replace(self._blob(file))

    def _fill(self, file: RemoteFile, stream: BinaryIO) -> None:
        """Ask for what is missing until nothing is; each try goes on where the one before ended."""
        tries, before = 0, -1
        while (have := stream.seek(0, os.SEEK_END)) != file.size or before < 0:
            if have > before:
                tries = 0
            before = have
            try:
                self._ask(file, stream)
            except (httpx2.TransportError, HfHubHTTPError) as error:
                is_passing = not isinstance(error, HfHubHTTPError) or error.response.status_code in PASSING_CODES
                if not is_passing or tries >= len(PAUSES_S):
                    raise
                time.sleep(PAUSES_S[tries])
                tries += 1

    def _ask(self, file: RemoteFile, stream: BinaryIO) -> None:
        have = stream.tell()
        if have > file.size:
            have = _emptied(stream)
        self.meter.enter("downloading", file.name)
        self.meter.moved(file.name, have)
        if have == file.size:
            return
        headers = request_headers() | {"accept-encoding": "identity"}
        if have:
            headers["range"] = f"bytes={have}-"
        url = file_address(self.repository, file.name, self.commit)
        with get_session().stream("GET", url, headers=headers, timeout=silence_limit_s()) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            if have and response.status_code == OK:  # the whole file, whatever was asked for
                have = _emptied(stream)
            self._keep(file, have, response.iter_bytes(CHUNK_BYTES), stream)

    def _keep(self, file: RemoteFile, have: int, chunks: Iterable[bytes], stream: BinaryIO) -> None:
        for chunk in chunks:
            have += len(chunk)
            if have > file.size:
                raise Failed(Kind.CORRUPT, f"{file.name} is longer than the hub says it is")
            stream.write(chunk)
            self.meter.moved(file.name, have)
        if have < file.size:
            raise httpx2.RemoteProtocolError("the file ended early")

    def _pointer(self, file: RemoteFile) -> Path:
        return repository_folder(self.cache, self.repository) / "snapshots" / self.commit / file.name

    def _blob(self, file: RemoteFile) -> Path:
        return repository_folder(self.cache, self.repository) / "blobs" / file.digest

    def _partial(self, file: RemoteFile) -> Path:
        return self._blob(file).with_name(f"{file.digest}.incomplete")


@contextmanager
def _locked(partial: Path, on_wait: Callable[[], None]) -> Generator[BinaryIO]:
    """Open what has come of a file, for this process alone.

    Another process that pulls it is waited for, after `on_wait`: until it has it, gives up or dies, each of which lets
    go of the file; whoever follows this pull ends the wait by ending the pull.
    """
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


def _emptied(stream: BinaryIO) -> int:
    """Begin anew; the length is 0 then."""
    return stream.truncate(stream.seek(0))


def _digest(stream: BinaryIO, file: RemoteFile) -> str:
    """Return SHA-256 of the file, or git's name of its content, whichever its digest is."""
    if len(file.digest) == 2 * hashlib.sha256().digest_size:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    stream.seek(0)
    while data := stream.read(READ_BYTES):
        digest.update(data)
    return digest.hexdigest()
