"""The settings that a gateway writes: each key is checked, and nothing else gets through."""

import json
import os
from typing import Any

import pytest

from worker.settings import MAX_SETTINGS_BYTES, SettingsError, WorkerSettings, read_settings

NEEDED: dict[str, Any] = {
    "instance_id": "0123456789ab",
    "model": "tiny",
    "checkpoint": "/models/tiny",
    "socket": "/tmp/pomona-x/w-0123456789ab.sock",
    "secret": "hidden",
}


def read(**changes: Any) -> WorkerSettings:
    return WorkerSettings.from_json(json.dumps({**NEEDED, **changes}).encode())


def test_what_is_not_said_has_the_documented_default() -> None:
    settings = read()
    assert settings.path == "fast"
    assert settings.context_tokens is None
    assert (settings.max_batch_rows, settings.max_queue_requests) == (16, 64)
    assert settings.prefill_chunk_tokens == 512
    assert (settings.kv_scheme, settings.kv_bytes) == ("none", None)
    assert (settings.prefix_cache_bytes, settings.prefix_cache_folder) == (512 << 20, None)
    assert settings.prefix_cache_folder_bytes == 8 << 30
    assert (settings.outbox_bytes, settings.slow_reader_s) == (262_144, 30)
    assert (settings.max_request_bytes, settings.max_response_bytes) == (16 << 20, 16 << 20)
    assert settings.template_timeout_s == 5
    assert settings.compute_threads is None
    assert settings.cpu_kernels is True
    assert settings.log_level == "info"
    assert (settings.adapters_folder, settings.adapters_bytes, settings.lazy_adapters) == (None, 256 << 20, False)
    assert settings.adapters == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "reference"),
        ("context_tokens", 100),
        ("context_tokens", None),
        ("max_batch_rows", 1),
        ("kv_scheme", "turbo:k8v3"),
        ("kv_bytes", 1 << 20),
        ("kv_bytes", None),
        ("prefix_cache_bytes", 0),
        ("prefix_cache_bytes", 1 << 20),
        ("prefix_cache_folder", "/var/cache/prefixes"),
        ("prefix_cache_folder", None),
        ("prefix_cache_folder_bytes", 1 << 20),
        ("slow_reader_s", 1),
        ("template_timeout_s", 0.5),
        ("compute_threads", 2),
        ("cpu_kernels", False),
        ("allow_mlx_lm", True),
        ("adapters_folder", "/srv/adapters"),
        ("adapters_bytes", 1),
        ("lazy_adapters", True),
        ("adapters", []),
        ("adapters", [{"adapter": "a"}, {"adapter": "b", "source": "o/b", "pinned": True, "revision": "0"}]),
        ("defaults", {"temperature": 0.5, "max_tokens": 7}),
        ("defaults", None),
        ("log_level", "debug"),
    ],
)
def test_each_key_is_taken_over(key: str, value: Any) -> None:
    assert getattr(read(**{key: value}), key) == value


@pytest.mark.parametrize("key", sorted(NEEDED))
def test_a_key_without_a_default_must_be_there(key: str) -> None:
    told = {name: value for name, value in NEEDED.items() if name != key}
    with pytest.raises(SettingsError, match=key):
        WorkerSettings.from_json(json.dumps(told).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instance_id", ""),
        ("instance_id", 5),
        ("model", None),
        ("checkpoint", "models/tiny"),
        ("socket", "w.sock"),
        ("socket", "/tmp/" + "x" * 104),
        ("secret", ""),
        ("path", "slow"),
        ("context_tokens", 0),
        ("context_tokens", "100"),
        ("max_batch_rows", 0),
        ("max_batch_rows", True),
        ("max_batch_rows", 1.5),
        ("max_batch_rows", None),
        ("max_queue_requests", 1 << 62),
        ("prefill_chunk_tokens", -1),
        ("kv_scheme", ""),
        ("kv_scheme", 8),
        ("kv_scheme", None),
        ("kv_bytes", 0),
        ("kv_bytes", "1"),
        ("prefix_cache_bytes", -1),
        ("prefix_cache_bytes", False),
        ("prefix_cache_bytes", 0.0),
        ("prefix_cache_bytes", None),
        ("prefix_cache_folder", ""),
        ("prefix_cache_folder", "prefixes"),
        ("prefix_cache_folder_bytes", 0),
        ("outbox_bytes", 0),
        ("slow_reader_s", 0),
        ("slow_reader_s", True),
        ("slow_reader_s", "5"),
        ("template_timeout_s", float("inf")),
        ("template_timeout_s", float("nan")),
        ("compute_threads", 0),
        ("cpu_kernels", 0),
        ("cpu_kernels", "off"),
        ("cpu_kernels", None),
        ("allow_mlx_lm", 1),
        ("adapters_folder", "adapters"),
        ("adapters_bytes", 0),
        ("lazy_adapters", 1),
        ("adapters", {"adapter": "a"}),
        ("adapters", ["a"]),
        ("adapters", [{"source": "a"}]),
        ("adapters", [{"adapter": ""}]),
        ("adapters", [{"adapter": "a", "pinned": 1}]),
        ("adapters", [{"adapter": "a", "path": "/a"}]),
        ("defaults", {"temperature": -1}),
        ("defaults", ["temperature"]),
        ("log_level", "loud"),
        ("shoe_size", 43),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=key):
        read(**{key: value})


@pytest.mark.parametrize("text", [b"", b"[1]", b"5", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(SettingsError):
        WorkerSettings.from_json(text)


def test_the_secret_is_never_shown() -> None:
    assert "hidden" not in repr(read())
    with pytest.raises(SettingsError) as raised:
        read(secret=["hidden"])
    assert "hidden" not in str(raised.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        read().model = "other"  # pyright: ignore[reportAttributeAccessIssue]


def written(text: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


def test_a_descriptor_is_read_to_its_end_and_closed() -> None:
    fd = written(json.dumps(NEEDED).encode())
    assert read_settings(fd).model == "tiny"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_descriptor_that_is_not_there_is_told() -> None:
    fd = written(b"")
    os.close(fd)
    with pytest.raises(SettingsError, match="descriptor"):
        read_settings(fd)


def test_settings_without_end_are_refused(tmp_path: Any) -> None:
    endless = tmp_path / "settings"
    endless.write_bytes(b" " * (MAX_SETTINGS_BYTES + 1))
    with pytest.raises(SettingsError, match="long"):
        read_settings(os.open(endless, os.O_RDONLY))
