"""Whatever is in an adapter's files, reading them ends well or with an error of adapters."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from models.adapters.adapter import open_adapter
from models.adapters.errors import AdapterError
from models.adapters.names import read_half
from tests.models.checkpoint.fuzzing import Patches, patched, patches
from tests.support.tiny_adapters import llama_targets, settings_of, write_random

TARGETS = llama_targets()
HEADER_BYTES = 3000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("q_proj"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["q_proj", "^x", "scale"]), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [*settings_of("mlx"), *settings_of("peft"), "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "bias"]
)


def read(weights: bytes | None, told: bytes | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_random(Path(name) / "a", modules=("q_proj",))
        if weights is not None:
            (folder / "adapters.safetensors").write_bytes(weights)
        if told is not None:
            (folder / "adapter_config.json").write_bytes(told)
        try:
            adapter = open_adapter(folder, TARGETS).read()
        except AdapterError:
            return
        assert set(adapter.layers) <= set(TARGETS)
        assert all(layer.a.size == layer.rank * TARGETS[name].inputs for name, layer in adapter.layers.items())


def content() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        return (write_random(Path(name) / "a", modules=("q_proj",)) / "adapters.safetensors").read_bytes()


WEIGHTS = content()


@settings(max_examples=50, deadline=None)
@given(patches(st.integers(0, HEADER_BYTES)), st.integers(0, 40))
def test_changed_weights(changes: Patches, cut: int) -> None:
    changed = patched(WEIGHTS, changes)
    read(changed[: len(changed) - cut], None)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_changed_settings(changes: dict[str, Any], is_mlx: bool) -> None:
    read(None, json.dumps({**settings_of("mlx" if is_mlx else "peft"), **changes}).encode())


@given(st.text(max_size=60))
def test_names_of_tensors(name: str) -> None:
    half = read_half(name)
    assert half is None or (half.side in "ab" and half.module)
