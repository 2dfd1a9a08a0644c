"""Which adapters are compared with PEFT, on one tiny Llama: its layout, its scales and its square matrices."""

from pathlib import Path
from typing import Any

from models.adapters.target import AdapterTarget
from tests.support.tiny_adapters import factors, llama_targets, named, settings_of, write_adapter
from tests.support.tiny_models import write_llama

NUM_KEPT = 4
PROMPT = [(index * 7919 + 13) % 256 for index in range(40)]
TARGETS = llama_targets()
SQUARE = [target for target in TARGETS.values() if target.inputs == target.outputs]
LINEAR = sorted({module.rpartition(".")[2] for module in TARGETS})
# By name: the layers, their ranks, and what differs in the settings.
ADAPTERS: dict[str, tuple[list[AdapterTarget], dict[str, int], dict[str, Any]]] = {
    "plain": (list(TARGETS.values()), {}, {}),
    "of a large alpha": (list(TARGETS.values()), {}, {"lora_alpha": 40}),
    "rank-stabilized": (list(TARGETS.values()), {}, {"use_rslora": True}),
    "square and of full rank": (SQUARE, {target.module: 64 for target in SQUARE}, {"r": 64, "lora_alpha": 16}),
    "with ranks and alphas of their own": (
        list(TARGETS.values()),
        {module: 2 for module in TARGETS if "layers.0" in module},
        {
            "rank_pattern": {f"layers.0.{part}.{name}": 2 for part in ("self_attn", "mlp") for name in LINEAR},
            "alpha_pattern": {"up_proj": 24},
        },
    ),
    "rank-stabilized with ranks of their own": (
        list(TARGETS.values()),
        {module: 9 for module in TARGETS if module.endswith("down_proj")},
        {"rank_pattern": {"down_proj": 9}, "use_rslora": True},
    ),
}


def write_model(folder: Path) -> Path:
    return write_llama(folder)


def write_golden(folder: Path, name: str) -> Path:
    """Write one of the adapters as PEFT would."""
    targets, ranks, changes = ADAPTERS[name]
    made = factors(targets, {target.module: ranks.get(target.module, 4) for target in targets}, size=0.12)
    names = sorted({target.module.rpartition(".")[2] for target in targets})
    options: dict[str, Any] = {"target_modules": names, **changes}
    settings = settings_of("peft", **options)
    return write_adapter(folder, named(made, "peft"), settings, weights_file="adapter_model.safetensors")
