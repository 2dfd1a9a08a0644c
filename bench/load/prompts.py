"""Prompts of a wanted length, each unlike the others from its first word on, so that none is in another's cache."""

import random
from collections.abc import Callable
from pathlib import Path

from bench.load.plan import Job

TEXT = (
    "river mill boat grain morning evening walk fire peace road stone bridge house garden water light night winter "
    "summer market village child mother teacher letter story answer question number reason music window kitchen table "
    "bread silver forest mountain island harbour engine paper machine signal memory pattern colour method season "
    "history science language country people island city train measure weather"
)
SEED = 20261129


class Prompts:
    """Makes jobs; the same calls give the same jobs.

    Args:
        encode: text to token ids, without special tokens around it.
        seed: of the words.
    """

    def __init__(self, encode: Callable[[str], list[int]], seed: int = SEED) -> None:
        self._encode = encode
        self._dice = random.Random(seed)
        self._words = TEXT.split()
        self._made = 0

    def job(self, prompt_tokens: int, num_tokens: int) -> Job:
        """Return a new prompt of `prompt_tokens` tokens, or a token or two more where a word has several."""
        words = [f"{self._made}:"]
        self._made += 1
        missing = prompt_tokens
        while missing > 0:
            words += self._dice.choices(self._words, k=max(1, missing // 2))
            missing = prompt_tokens - len(self._encode(" ".join(words)))
        text = " ".join(words)
        return Job(text, tuple(self._encode(text)), num_tokens)


def prompts_of(checkpoint: Path, seed: int = SEED) -> Prompts:
    """Return prompts in the tokens of a checkpoint."""
    from models.checkpoint.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(checkpoint).tokenizer()
    return Prompts(lambda text: tokenizer.encode(text, add_special_tokens=False), seed)
