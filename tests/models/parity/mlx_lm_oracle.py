"""mlx-lm as the other implementation: the same folder, its own model, cache and generation loop."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step, stream_generate
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load, load_model

from models.checkpoint.tokenizer import Tokenizer
from tests.models.stepping import Choices


class _Kept:
    """A logits processor that changes nothing and keeps what it saw."""

    def __init__(self) -> None:
        self.logits: list[mx.array] = []

    def __call__(self, _tokens: mx.array, logits: mx.array) -> mx.array:
        self.logits.append(logits[0])
        return logits

    def with_tokens(self, tokens: list[int]) -> Choices:
        mx.eval(self.logits)
        return list(zip(tokens, self.logits[: len(tokens)], strict=True))


def greedy_logits(folder: Path, prompt: Sequence[int], num_tokens: int, adapter: Path | None = None) -> Choices:
    """Return each greedy token with the logits [V] that it was taken from, behind an adapter where one is given."""
    model, _ = load_model(folder)
    if adapter is not None:
        model = load_adapters(model, str(adapter))
        model.eval()
    kept = _Kept()
    steps = generate_step(mx.array(list(prompt)), model, max_tokens=num_tokens, logits_processors=[kept])
    return kept.with_tokens([int(token) for token, _ in steps])


def greedy_text(folder: Path, tokenizer: Tokenizer, prompt: str, num_tokens: int) -> tuple[str, Choices]:
    """Return the text that mlx-lm makes with this tokenizer, and its tokens with their logits."""
    tokenizer._raw.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.eos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded: Any = load(str(folder))
    kept = _Kept()
    steps = list(stream_generate(*loaded, prompt=prompt, max_tokens=num_tokens, logits_processors=[kept]))
    return "".join(step.text for step in steps), kept.with_tokens([step.token for step in steps])
