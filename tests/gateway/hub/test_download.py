"""A pull in its own process, from a hub on this machine."""

import asyncio
import fcntl
import json
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.errors import CheckpointCorrupt, CheckpointRejected, GatewayError, ModelLoadFailed
from gateway.hub.cache import cached_models
from gateway.hub.download import Downloader, pull_command
from gateway.hub.messages import Done, Order, Progress
from gateway.process import Command
from gateway.pull_errors import DiskFull, HubUnreachable, RepositoryForbidden, RepositoryNotFound
from tests.support.hub import COMMIT, Hub, digest_of
from tests.support.waiting import eventually

MIB = 1024 * 1024
WEIGHTS = random.Random(1).randbytes(3 * MIB)
WEIGHTS_FILE = "model.safetensors"
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    WEIGHTS_FILE: WEIGHTS,
    "tokenizer.json": b"{}",
    "README.md": b"# Words",
    "pytorch_model.bin": b"pickle",
}
ORDER = Order("org/m")


class Side:
    """Who pulls: a cache, and what was told."""

    def __init__(self, hub: Hub, home: Path, **variables: str) -> None:
        self.cache = home / "hub"
        environment = {**os.environ, **hub.environment(home), **variables}
        self.command = pull_command(environment, self.cache)
        self.told: list[Progress] = []

    async def pull(self, order: Order = ORDER) -> Done:
        log = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
        return await Downloader(self.command, log).run(order, self.told.append)

    async def failure(self, order: Order = ORDER) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            await self.pull(order)
        return caught.value

    def blob(self, name: str, content: bytes) -> Path:
        return self.cache / "models--org--m" / "blobs" / digest_of(name, content)

    @property
    def partial(self) -> Path:
        return self.blob(WEIGHTS_FILE, WEIGHTS).with_suffix(".incomplete")


def contents(done: Done) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(done.checkpoint).iterdir()}


async def test_a_model_comes_with_what_is_read_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    side = Side(hub, tmp_path)
    done = await side.pull()
    assert (done.revision, Path(done.checkpoint).name) == (COMMIT, COMMIT)
    came = contents(done)
    assert came == {name: FILES[name] for name in ("config.json", WEIGHTS_FILE, "tokenizer.json")}
    (model,) = cached_models(side.cache)
    assert (model.name, str(model.checkpoint)) == ("org/m", done.checkpoint)
    assert [one.file for one in side.told if one.phase == "skipped"] == ["pytorch_model.bin"]
    total = sum(map(len, came.values()))
    moving = [one for one in side.told if one.phase == "downloading"]
    assert {one.bytes_total for one in moving} == {total}
    assert sorted(one.bytes_done for one in moving) == [one.bytes_done for one in moving]
    assert hub.downloads("pytorch_model.bin") == []


async def test_the_library_finds_what_came(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    side = Side(hub, tmp_path)
    done = await side.pull()
    code = "from huggingface_hub import snapshot_download; print(snapshot_download('org/m', local_files_only=True))"
    process = await asyncio.create_subprocess_exec(
        side.command.argv[0], "-c", code, env=dict(side.command.environment), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == done.checkpoint


async def test_a_second_pull_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    side = Side(hub, tmp_path)
    first = await side.pull()
    hub.asked.clear()
    assert await side.pull() == first
    assert [one.path for one in hub.asked] == ["/api/models/org/m"]


async def test_a_connection_that_breaks_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, cuts={WEIGHTS_FILE: [2 * MIB + 5]})
    side = Side(hub, tmp_path)
    await side.pull()
    ranges = [one.range for one in hub.downloads(WEIGHTS_FILE)]
    assert ranges == ["", f"bytes={2 * MIB}-"]
    assert side.blob(WEIGHTS_FILE, WEIGHTS).read_bytes() == WEIGHTS
    assert not side.partial.exists()


async def test_a_hub_that_ignores_ranges_is_read_from_the_beginning(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, cuts={WEIGHTS_FILE: [2 * MIB]}, ignores_ranges=True)
    side = Side(hub, tmp_path)
    await side.pull()
    assert side.blob(WEIGHTS_FILE, WEIGHTS).read_bytes() == WEIGHTS


async def test_what_was_killed_in_the_middle_is_resumed_by_the_next(hub: Hub, tmp_path: Path) -> None:
    repository = hub.add("org/m", FILES)
    hold = repository.holds[WEIGHTS_FILE] = threading.Event()
    side = Side(hub, tmp_path)
    pulling = asyncio.create_task(side.pull())
    await eventually(lambda: side.partial.exists() and side.partial.stat().st_size >= MIB, 10)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    hold.set()
    repository.holds.clear()
    kept = side.partial.stat().st_size
    assert cached_models(side.cache) == []
    await side.pull()
    assert [one.range for one in hub.downloads(WEIGHTS_FILE)] == ["", f"bytes={kept}-"]
    assert side.blob(WEIGHTS_FILE, WEIGHTS).read_bytes() == WEIGHTS


async def test_content_other_than_listed_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, lies={WEIGHTS_FILE: WEIGHTS[:-1] + b"x"})
    side = Side(hub, tmp_path)
    error = await side.failure()
    assert isinstance(error, CheckpointCorrupt)
    assert WEIGHTS_FILE in str(error)
    assert not side.blob(WEIGHTS_FILE, WEIGHTS).exists()
    assert side.partial.stat().st_size == 0


async def test_content_longer_than_listed_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, lies={WEIGHTS_FILE: WEIGHTS + b"x"})
    assert isinstance(await Side(hub, tmp_path).failure(), CheckpointCorrupt)


async def test_a_gguf_file_is_a_model_of_its_own(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", {"a-Q4_0.gguf": b"GGUF", "b.gguf": b"GGUF"})
    side = Side(hub, tmp_path)
    done = await side.pull(Order("org/m", name="mine", file="a-Q4_0.gguf"))
    assert [(model.name, str(model.checkpoint)) for model in cached_models(side.cache)] == [("mine", done.checkpoint)]
    assert hub.downloads("b.gguf") == []


def converted(config: Mapping[str, Any]) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), "model.bin": b"w", "vocabulary.txt": b"a"}


async def test_whisper_of_ctranslate2_comes_with_its_weights(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", converted({"suppress_ids": [1]}))
    assert set(contents(await Side(hub, tmp_path).pull())) == {"config.json", "model.bin", "vocabulary.txt"}


async def test_weights_of_the_same_name_may_be_a_pickle_and_do_not_come(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", converted({"model_type": "llama"}))
    side = Side(hub, tmp_path)
    assert isinstance(await side.failure(), CheckpointRejected)
    assert not side.cache.exists()


async def test_nothing_is_downloaded_of_a_repository_without_anything_to_serve(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", {"config.json": b"{}", "pytorch_model.bin": b"w"})
    side = Side(hub, tmp_path)
    assert isinstance(await side.failure(), CheckpointRejected)
    assert [one.path for one in hub.asked] == ["/api/models/org/m"]
    assert not side.cache.exists()


async def test_a_disk_that_is_too_small_is_told_before_anything_comes(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, sizes={WEIGHTS_FILE: 1 << 60})
    side = Side(hub, tmp_path)
    error = await side.failure()
    assert isinstance(error, DiskFull)
    assert error.needed_bytes > 1 << 60 > error.free_bytes > 0
    assert hub.downloads(WEIGHTS_FILE) == []


@pytest.mark.parametrize(
    ("behaviour", "order", "kind", "said"),
    [
        ({}, Order("org/none"), RepositoryNotFound, "no such repository"),
        ({"token": "secret"}, ORDER, RepositoryNotFound, "private"),
        ({}, Order("org/m", "v9"), RepositoryNotFound, "no revision v9"),
        ({"is_gated": True}, ORDER, RepositoryForbidden, "gated"),
    ],
)
async def test_what_the_hub_refuses_is_told_in_words(
    hub: Hub, tmp_path: Path, behaviour: dict[str, Any], order: Order, kind: type[GatewayError], said: str
) -> None:
    hub.add("org/m", FILES, **behaviour)
    error = await Side(hub, tmp_path).failure(order)
    assert (type(error), said in str(error)) == (kind, True)
    assert hub.address not in str(error)
    assert str(tmp_path) not in str(error)


@pytest.mark.parametrize(("status", "kind"), [(500, HubUnreachable), (403, RepositoryForbidden)])
async def test_a_hub_in_trouble_is_told_by_its_code(
    hub: Hub, tmp_path: Path, status: int, kind: type[GatewayError]
) -> None:
    hub.status = status
    error = await Side(hub, tmp_path).failure()
    assert (type(error), str(status) in str(error)) == (kind, True)


async def test_a_hub_that_is_not_there_is_unreachable(hub: Hub, tmp_path: Path) -> None:
    side = Side(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:1")
    assert isinstance(await side.failure(), HubUnreachable)


async def test_a_token_opens_a_private_repository_and_stands_in_no_argument(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES, token="secret")
    side = Side(hub, tmp_path, HF_TOKEN="secret")
    await side.pull(Order("org/m", COMMIT))
    assert {one.token for one in hub.asked} == {"secret"}
    assert "secret" not in " ".join(side.command.argv)


async def test_offline_what_is_cached_is_there_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    done = await Side(hub, tmp_path).pull()
    hub.asked.clear()
    offline = Side(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert await offline.pull() == done
    error = await offline.failure(Order("org/none"))
    assert (type(error), "HF_HUB_OFFLINE" in str(error)) == (RepositoryNotFound, True)
    assert hub.asked == []


async def test_a_cache_that_cannot_be_written_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    (tmp_path / "hub").write_text("a file")
    assert isinstance(await Side(hub, tmp_path).failure(), ModelLoadFailed)


async def test_a_process_that_fails_without_a_word_is_a_failure(hub: Hub, tmp_path: Path) -> None:
    side = Side(hub, tmp_path)
    side.command = Command((side.command.argv[0], "-c", "raise SystemExit(1)"), {})
    assert isinstance(await side.failure(), ModelLoadFailed)


async def test_two_processes_download_a_file_once(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    side, other = Side(hub, tmp_path), Side(hub, tmp_path)
    first, second = await asyncio.gather(side.pull(), other.pull())
    assert first == second
    assert len(hub.downloads(WEIGHTS_FILE)) == 1


def test_a_pull_sees_only_what_it_needs_of_the_environment(tmp_path: Path) -> None:
    given = {"HF_TOKEN": "t", "https_proxy": "p", "PATH": "/bin", "AWS_SECRET": "s", "POMONA_TOKEN": "x", "HOME": "/h"}
    seen = pull_command(given, tmp_path).environment
    assert {"HF_TOKEN", "https_proxy", "PATH", "HOME"} <= seen.keys()
    assert not {"AWS_SECRET", "POMONA_TOKEN"} & seen.keys()
    assert seen["HF_HUB_CACHE"] == str(tmp_path)


async def test_a_file_that_another_process_pulls_is_waited_for_and_that_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/m", FILES)
    side = Side(hub, tmp_path)
    side.partial.parent.mkdir(parents=True)
    with side.partial.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        pulling = asyncio.create_task(side.pull())
        await eventually(lambda: any((one.phase, one.file) == ("waiting", WEIGHTS_FILE) for one in side.told))
        assert not hub.downloads(WEIGHTS_FILE)
    assert contents(await pulling)[WEIGHTS_FILE] == WEIGHTS
