"""Which architectures mlx-lm knows is told from its files, and from nothing that a config could make of a name."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from models.borrowed.known import is_installed, knows


@pytest.mark.parametrize("model_type", ["stablelm", "starcoder2", "olmo2", "mamba", "lfm2-vl", "solar_open", "llama"])
def test_a_module_of_a_model_is_known(model_type: str) -> None:
    assert is_installed()
    assert knows(model_type)


@pytest.mark.parametrize("model_type", ["falcon_mamba", "kimi_k2", "qwen2_5_vl", "phi-msft", "mistral"])
def test_a_second_name_is_known(model_type: str) -> None:
    assert knows(model_type)


@pytest.mark.parametrize(
    "model_type",
    [
        "",
        "unheard_of",
        "cache",
        "base",
        "rope_utils",
        "__init__",
        "../utils",
        "models/llama",
        "llama.py",
        ".",
        "é",
        "a\0b",
    ],
)
def test_anything_else_is_not_known(model_type: str) -> None:
    assert not knows(model_type)


@pytest.mark.parametrize("spec", [None, ModuleSpec("mlx_lm", None)])
def test_nothing_is_known_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert (is_installed(), knows("stablelm")) == (False, False)


@pytest.mark.parametrize("table", [None, "MODEL_REMAPPING = other()", "MODEL_REMAPPING = {", "X = {}"])
def test_a_table_that_is_not_what_it_was_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "stablelm.py").write_text("class ModelArgs: ...")
    if table is not None:
        (tmp_path / "utils.py").write_text(table)
    spec = ModuleSpec("mlx_lm", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert (knows("stablelm"), knows("falcon_mamba")) == (True, False)
