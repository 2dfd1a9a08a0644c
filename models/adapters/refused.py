"""Kinds of adapters that are not run, each refused by its name: applied as plain ones they would give other numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.adapters.errors import AdapterRejected

# What trains on weights that it has changed beside: without these the adapter is another one.
_CHANGES_WEIGHTS = ("pissa", "olora", "corda", "loftq", "lora_ga")

_Check = Callable[[Any], bool]


def check_kind(keys: Mapping[str, Any], file: str) -> None:
    """Refuse settings of a kind that is not run.

    Args:
        keys: of the file, or of a section of it.
        file: base name of the file.

    Raises:
        AdapterRejected: naming the key and the kind.
    """
    for key, (is_meant, kind) in _KINDS.items():
        if is_meant(keys.get(key)):
            raise AdapterRejected(f"asks for {kind}, which is not run", file=file, key=key)


def _is_on(value: Any) -> bool:
    return bool(value)


def _is_other_than(*words: str) -> _Check:
    return lambda value: value is not None and str(value).lower() not in words


def _changes_weights(value: Any) -> bool:
    return isinstance(value, str) and value.lower().startswith(_CHANGES_WEIGHTS)


_KINDS: Mapping[str, tuple[_Check, str]] = {
    "use_dora": (_is_on, "DoRA"),
    "fine_tune_type": (_is_other_than("lora"), "a kind of training other than LoRA"),
    "peft_type": (_is_other_than("lora"), "a kind of adapter other than LoRA"),
    "bias": (_is_other_than("none"), "biases"),
    "lora_bias": (_is_on, "biases of the adapter"),
    "modules_to_save": (_is_on, "whole layers beside the adapter"),
    "layer_replication": (_is_on, "layers that are repeated"),
    "alora_invocation_tokens": (_is_on, "an adapter that only some tokens switch on"),
    "target_parameters": (_is_on, "parameters that are no linear layers"),
    "trainable_token_indices": (_is_on, "trained tokens"),
    "use_qalora": (_is_on, "QALoRA"),
    "use_bdlora": (_is_on, "block-diagonal LoRA"),
    "kasa_config": (_is_on, "KaSA"),
    "monteclora_config": (_is_on, "MonteCLoRA"),
    "arrow_config": (_is_on, "a router of adapters"),
    "init_lora_weights": (_changes_weights, "changed weights of the model beside the adapter"),
}
