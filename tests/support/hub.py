"""A hub of models on this machine: an HTTP server with the endpoints that a pull asks, and ways to misbehave."""

import hashlib
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_ENDINGS = (".safetensors", ".bin", ".gguf", ".onnx")
HOLD_LIMIT_S = 20.0


@dataclass
class Repository:
    """What the hub has of one repository, and how it behaves.

    Attributes:
        files: content by name.
        commit: of the only revision, `main`.
        token: who may have it; empty: everybody.
        is_gated: whether its files are refused though it is listed.
        cuts: by file, after how many bytes of an answer the connection breaks; one is used up by each answer.
        holds: by file, what an answer waits for in its middle.
        lies: files whose content is another than their digests say.
        ignores_ranges: whether a file always comes from its beginning.
        sizes: what is said of a file's size instead of the truth.
    """

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str = ""
    is_gated: bool = False
    cuts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    holds: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])
    lies: dict[str, bytes] = field(default_factory=dict[str, bytes])
    ignores_ranges: bool = False
    sizes: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Asked:
    """One request that the hub got."""

    method: str
    path: str
    range: str
    token: str


class Hub:
    """The server; `repositories` by name, `asked` in order, `status` is answered to everything where it is not 0."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.status = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name: str, files: Mapping[str, bytes] | Path, **behaviour: Any) -> Repository:
        """Have a repository of these files, or of those in a folder."""
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes() for path in files.rglob("*") if path.is_file()
            }
        self.repositories[name] = Repository(dict(files), **behaviour)
        return self.repositories[name]

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables by which huggingface_hub finds this hub, and a cache of its own."""
        cache = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN": "", "HF_HUB_OFFLINE": ""}
        return {**cache, "HF_ENDPOINT": self.address, "HF_HUB_DOWNLOAD_TIMEOUT": "5", "NO_PROXY": "*"}

    def downloads(self, file: str) -> list[Asked]:
        """Return the downloads of a file."""
        return [one for one in self.asked if one.method == "GET" and one.path.endswith(f"/{file}")]

    @contextmanager
    def running(self) -> "Generator[Hub]":
        """Serve for the length of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            for repository in self.repositories.values():
                for hold in repository.holds.values():
                    hold.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)


def digest_of(name: str, content: bytes) -> str:
    """Return what a file's blob is called: SHA-256 of what is stored apart from git, else git's own name."""
    if name.endswith(LFS_ENDINGS):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

        def do_HEAD(self) -> None:
            _answer(hub, self, with_body=False)

        def do_GET(self) -> None:
            _answer(hub, self, with_body=True)

    return Handler


def _answer(hub: Hub, handler: BaseHTTPRequestHandler, *, with_body: bool) -> None:
    path = unquote(urlsplit(handler.path).path)
    token = handler.headers.get("authorization", "").removeprefix("Bearer ")
    hub.asked.append(Asked(handler.command, path, handler.headers.get("range", ""), token))
    parts = path.removeprefix("/api/models/").strip("/").split("/")
    name, revision, file = "/".join(parts[:2]), (parts[3:4] or ["main"])[0], "/".join(parts[4:])
    repository = hub.repositories.get(name)
    refusal = (hub.status, "") if hub.status else _refusal(repository, token, revision, file)
    if refusal is not None or repository is None:
        status, code = refusal or (404, "")
        _send(handler, b"{}", {"X-Error-Code": code} if code else {}, status=status, with_body=with_body)
    elif file:
        _send_file(handler, repository, file, with_body=with_body)
    else:
        _send(handler, json.dumps(_info(name, repository)).encode(), {}, with_body=with_body)


def _refusal(repository: Repository | None, token: str, revision: str, file: str) -> tuple[int, str] | None:
    """Return the status and code that a request is refused with; None where it is not."""
    if repository is None or (repository.token and repository.token != token):
        return 401, "RepoNotFound"
    if revision not in {"main", repository.commit}:
        return 404, "RevisionNotFound"
    if file and repository.is_gated:
        return 403, "GatedRepo"
    return (404, "EntryNotFound") if file and file not in repository.files else None


def _info(name: str, repository: Repository) -> dict[str, Any]:
    siblings: list[dict[str, Any]] = []
    for file, content in repository.files.items():
        size = repository.sizes.get(file, len(content))
        sibling: dict[str, Any] = {"rfilename": file, "size": size, "blobId": digest_of("", content)}
        if file.endswith(LFS_ENDINGS):
            sibling["lfs"] = {"sha256": digest_of(file, content), "size": len(content), "pointerSize": 130}
        siblings.append(sibling)
    return {"_id": "1", "id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": []}


def _send_file(handler: BaseHTTPRequestHandler, repository: Repository, name: str, *, with_body: bool) -> None:
    listed = repository.files[name]
    content = repository.lies.get(name, listed)
    headers = {"ETag": f'"{digest_of(name, listed)}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
    wanted = handler.headers.get("range")
    start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted and not repository.ignores_ranges else 0
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    body = content[start:]
    cuts = repository.cuts.get(name)
    if with_body and cuts:
        _send(handler, body, headers, status=206 if start else 200, stop=cuts.pop(0))
        handler.close_connection = True
        handler.connection.close()
        return
    hold = repository.holds.get(name) if with_body else None
    _send(handler, body, headers, with_body=with_body, status=206 if start else 200, hold=hold)


def _send(
    handler: BaseHTTPRequestHandler,
    body: bytes,
    headers: Mapping[str, str],
    *,
    with_body: bool = True,
    status: int = 200,
    stop: int | None = None,
    hold: threading.Event | None = None,
) -> None:
    handler.send_response(status)
    for key, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(key, value)
    handler.end_headers()
    if not with_body:
        return
    try:
        if hold is not None:
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            hold.wait(HOLD_LIMIT_S)
            body = body[len(body) // 2 :]
        handler.wfile.write(body[:stop])
        handler.wfile.flush()
    except OSError:
        handler.close_connection = True  # who asked is gone
