"""Which checkpoints are compared with transformers, and on which prompt: plain weights, one of each kind of graph."""

from tests.models.families import EDGE, FAMILIES, KEY_VALUE, LONG, SHORT, SOME_DENSE
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
            "gemma4 experts fused",
            "qwen3_moe each",
        )
    },
    "mistral window": Tiny("mistral", {"sliding_window": 24}),
    # Shorter than the prompt: within it transformers takes other factors, see `RopeConfig.stretches`.
    "phi3 longrope": Tiny("phi3", {**LONG, "original_max_position_embeddings": 32}),
    "phi3 window": Tiny("phi3", {"sliding_window": 24}),
    "qwen2 window": Tiny("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "gemma4 values from keys": Tiny("gemma4_text", KEY_VALUE),
    "gemma4 edge": Tiny("gemma4_text", EDGE),
    # The text models alone, as their makers publish them.
    "qwen3_5": Tiny("qwen3_5", {"model_type": "qwen3_5_text"}, is_published=True),
    "qwen3_5 short": Tiny("qwen3_5", {**SHORT, "model_type": "qwen3_5_text"}, is_published=True),
    "qwen3_5_moe": Tiny("qwen3_5_moe", {"model_type": "qwen3_5_moe_text"}, layout="fused", is_published=True),
    "qwen3_moe some dense": Tiny("qwen3_moe", SOME_DENSE, layout="each"),
    "qwen3_moe window": Tiny("qwen3_moe", {"use_sliding_window": True, "sliding_window": 24}, layout="each"),
}
