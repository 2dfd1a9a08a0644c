"""Which checkpoints are compared with transformers, and on which prompt: plain weights, one of each kind of graph."""

from tests.models.families import EDGE, FAMILIES, KEY_VALUE, LONG
from tests.support.tiny_families import Tiny

NUM_KEPT = 4
# Longer than every window of the table.
PROMPT = [(index * 7919 + 13) % 256 for index in range(60)]
GOLDEN: dict[str, Tiny] = {
    **{
        name: FAMILIES[name]
        for name in (
            "mistral untied",
            "qwen2 tied",
            "qwen3 untied",
            "qwen3 rope llama3",
            "smollm3 tied",
            "smollm3 layers listed",
            "phi3 untied",
            "gemma3",
            "gemma3 rope linear",
            "gemma4",
        )
    },
    "mistral window": Tiny("mistral", {"sliding_window": 24}),
    # Shorter than the prompt: within it transformers takes other factors, see `RopeConfig.stretches`.
    "phi3 longrope": Tiny("phi3", {**LONG, "original_max_position_embeddings": 32}),
    "phi3 window": Tiny("phi3", {"sliding_window": 24}),
    "qwen2 window": Tiny("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "gemma4 values from keys": Tiny("gemma4_text", KEY_VALUE),
    "gemma4 edge": Tiny("gemma4_text", EDGE),
}
