"""What a worker is told by its gateway: read once, from an inherited descriptor, then frozen.

A plain dataclass and not a pydantic model: importing pydantic costs every cold start 20 to 50 ms, for one flat object
that only our own gateway writes.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, cast

from models.blocks import MAX_STEP_TOKENS
from worker.defaults import are_defaults
from worker.logs import LEVELS

SETTINGS_FD = 10
MAX_SETTINGS_BYTES = 1 << 20
# macOS allows 104 bytes, the closing zero included.
MAX_SOCKET_PATH_BYTES = 103

ADAPTERS_BYTES = 256 << 20

PATHS = ("fast", "reference")
EXPERTS = ("auto", "resident", "mapped", "slab")
TASKS = ("generate", "embed", "rerank")
TURNS = ("auto", "on", "off")


class SettingsError(Exception):
    """Raised when what the gateway wrote is not the settings of a worker; it says which key."""


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _absolute(value: Any) -> bool:
    return _text(value) and value.startswith("/")


def _absolute_or_none(value: Any) -> bool:
    return value is None or _absolute(value)


def _socket(value: Any) -> bool:
    return _absolute(value) and len(value.encode()) <= MAX_SOCKET_PATH_BYTES


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 62


def _count_or_none(value: Any) -> bool:
    return value is None or _count(value)


def _count_or_zero(value: Any) -> bool:
    return _count(value) or (value == 0 and type(value) is int)


def _step_tokens(value: Any) -> bool:
    return _count(value) and value <= MAX_STEP_TOKENS


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def _task_or_none(value: Any) -> bool:
    return value is None or value in TASKS


def _marks(value: Any) -> bool:
    is_pair = isinstance(value, list) and [_text(mark) for mark in cast("list[Any]", value)] == [True, True]
    return value in (None, "none") or is_pair


def _adapters(value: Any) -> bool:
    return isinstance(value, list) and all(_is_adapter(each) for each in cast("list[Any]", value))


def _is_adapter(value: Any) -> bool:
    checks = {"adapter": _text, "source": _text, "pinned": _flag, "revision": _text}
    if not isinstance(value, dict) or "adapter" not in value:
        return False
    return all(key in checks and checks[key](each) for key, each in cast("dict[str, Any]", value).items())


def _defaults(value: Any) -> bool:
    return value is None or are_defaults(value)


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


def _key(check: Callable[[Any], bool], default: Any = MISSING, *, shown: bool = True) -> Any:
    return field(default=default, repr=shown, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of one worker; each key is also the key of the gateway's JSON.

    Sizes are in bytes, times in seconds. `context_tokens` unset means what the checkpoint allows, `compute_threads`
    unset one for each core that this process may use. `cpu_kernels` is for the fast path on the CPU; off, MLX computes
    everything. The `reference` path always takes 2,048 for `prefill_chunk_tokens`, and has no prefix cache.

    `kv_scheme` says how keys and values are kept, in the words of `models.checkpoint.kv_scheme`; `kv_bytes` how many of
    them all rows hold together, unset whole contexts of all rows up to 4 GiB. `prefix_cache_bytes` 0 keeps nothing for
    later prompts, `prefix_cache_folder` unset nothing on disk.

    `experts` says where routed experts lie, `auto` where there is room, and `expert_budget` what their slabs may take;
    unset what the rest of the model leaves of `budget_bytes`, which models may take of this machine; unset there is no
    end of it. `expert_trace` is a file to write routing to.

    `max_audio_s` and `max_audio_bytes` bound the audio of one request as it comes, `max_audio_decoded_bytes` what it
    decodes to: floats of all channels. `audio_idle_s` is how long the caller of a stream of audio may send nothing.

    `reasoning_marks` are what opens and closes reasoning, or `none`; unset those of the chat template. `tool_dialect`
    is how the model writes calls of tools, by a name of `worker.dialects.choosing`; unset that of the chat template.

    `allow_mlx_lm` has mlx-lm, where it is installed, compute architectures that are not written here.

    `adapters_folder` is where LoRA adapters are found by name, unset nowhere; `adapters_bytes` bounds those that are
    mounted; with `lazy_adapters` a request that names one mounts it. `adapters` are mounted before the worker is
    active: objects with `adapter`, and at will `source` (its name in the folder, unset the same), `pinned` and
    `revision`.

    `defaults` are of requests that leave something open, by the names of `worker.defaults.RANGES`.

    `task` is what a text model is for: `generate`, `embed` or `rerank`; unset what the checkpoint's files say.

    `gpu_turns` says whether this worker waits for its turn before it computes: `auto` on a GPU, `on` everywhere, `off`
    nowhere. The turns come over descriptor 11.
    """

    instance_id: str = _key(_text)
    model: str = _key(_text)
    checkpoint: str = _key(_absolute)
    socket: str = _key(_socket)
    secret: str = _key(_text, shown=False)
    path: Literal["fast", "reference"] = _key(_one_of(*PATHS), "fast")
    context_tokens: int | None = _key(_count_or_none, None)
    max_batch_rows: int = _key(_count, 16)
    max_queue_requests: int = _key(_count, 64)
    prefill_chunk_tokens: int = _key(_step_tokens, 512)
    prefill_gap_s: float = _key(_seconds, 0.25)
    kv_scheme: str = _key(_text, "none")
    kv_bytes: int | None = _key(_count_or_none, None)
    experts: Literal["auto", "resident", "mapped", "slab"] = _key(_one_of(*EXPERTS), "auto")
    expert_budget: int | None = _key(_count_or_none, None)
    expert_trace: str | None = _key(_absolute_or_none, None)
    budget_bytes: int | None = _key(_count_or_none, None)
    prefix_cache_bytes: int = _key(_count_or_zero, 512 << 20)
    prefix_cache_folder: str | None = _key(_absolute_or_none, None)
    prefix_cache_folder_bytes: int = _key(_count, 8 << 30)
    outbox_bytes: int = _key(_count, 256 << 10)
    slow_reader_s: float = _key(_seconds, 30.0)
    max_request_bytes: int = _key(_count, 16 << 20)
    max_response_bytes: int = _key(_count, 16 << 20)
    max_audio_s: float = _key(_seconds, 14_400.0)
    max_audio_bytes: int = _key(_count, 2 << 30)
    max_audio_decoded_bytes: int = _key(_count, 8 << 30)
    audio_idle_s: float = _key(_seconds, 30.0)
    template_timeout_s: float = _key(_seconds, 5.0)
    reasoning_marks: Sequence[str] | None = _key(_marks, None)
    tool_dialect: str | None = _key(_text_or_none, None)
    task: Literal["generate", "embed", "rerank"] | None = _key(_task_or_none, None)
    adapters_folder: str | None = _key(_absolute_or_none, None)
    adapters_bytes: int = _key(_count, ADAPTERS_BYTES)
    lazy_adapters: bool = _key(_flag, False)
    adapters: Sequence[Mapping[str, Any]] = _key(_adapters, ())
    defaults: Mapping[str, Any] | None = _key(_defaults, None)
    compute_threads: int | None = _key(_count_or_none, None)
    cpu_kernels: bool = _key(_flag, True)
    allow_mlx_lm: bool = _key(_flag, False)
    log_level: str = _key(_one_of(*LEVELS), "info")
    gpu_turns: Literal["auto", "on", "off"] = _key(_one_of(*TURNS), "off")

    @classmethod
    def from_json(cls, text: bytes) -> "WorkerSettings":
        """Read settings strictly: every key known, of its type and in its range, and none missing.

        Raises:
            SettingsError: they are not; it names the key and never shows its value.
        """
        known = fields(cls)
        values = read_some(text, [each.name for each in known])
        missing = next((each.name for each in known if each.name not in values and each.default is MISSING), None)
        if missing is not None:
            raise SettingsError(f"missing setting {missing!r}")
        return cls(**values)


def read_some(text: str | bytes, names: Collection[str]) -> dict[str, Any]:
    """Read some of a worker's settings strictly, and return those that are there.

    Args:
        text: a JSON object.
        names: of those that may be there.

    Raises:
        SettingsError: another is, or one is not of its type and in its range; it names the key and never shows its
            value.
    """
    try:
        values: Any = json.loads(text)
    except ValueError as error:
        raise SettingsError("the settings are not JSON") from error
    if not isinstance(values, dict):
        raise SettingsError("the settings are not a JSON object")
    values = cast("dict[str, Any]", values)
    checks = {each.name: each.metadata["check"] for each in fields(WorkerSettings) if each.name in names}
    for name, value in values.items():
        if name not in checks:
            raise SettingsError(f"unknown setting {name!r}")
        if not checks[name](value):
            raise SettingsError(f"setting {name!r} has the wrong type or is out of range")
    return values


def read_settings(fd: int = SETTINGS_FD) -> WorkerSettings:
    """Read the settings from an inherited descriptor to its end, then close it.

    Raises:
        SettingsError: nothing readable is there, or it is not the settings of a worker.
    """
    try:
        with os.fdopen(fd, "rb") as stream:
            text = stream.read(MAX_SETTINGS_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"no settings on descriptor {fd}") from error
    if len(text) > MAX_SETTINGS_BYTES:
        raise SettingsError("the settings are too long")
    return WorkerSettings.from_json(text)
