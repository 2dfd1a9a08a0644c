"""The line about an answer that ends it: how much came of it, how fast, and what was spared."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pomona.v1 import common_pb2, generation_pb2

from gateway.cli.output import counted

FINISH_WORDS = {
    generation_pb2.FINISH_REASON_MAX_TOKENS: "cut at the token limit",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "cut at the end of the context",
    generation_pb2.FINISH_REASON_TOOL_CALL: "calls tools",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known at the end of a generation.

    Attributes:
        completed: its last event.
        first_after_s: from the question to the first token, in seconds; None where none came.
        num_sequences: how many answers came.
        finishes: words about their ends, where there is something to say.
    """

    completed: generation_pb2.GenerationCompleted
    first_after_s: float | None
    num_sequences: int
    finishes: Sequence[str]

    def statistics(self) -> dict[str, float]:
        """Return the figures by name."""
        usage, rate = self.completed.usage, self._rate()
        figures: dict[str, float] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if rate is not None:
            figures["tokens_per_second"] = rate
        if self.first_after_s is not None:
            figures["time_to_first_token_s"] = self.first_after_s
        return figures

    def line(self) -> str:
        """Return the figures in one line."""
        usage, rate = self.completed.usage, self._rate()
        parts = [
            counted(usage.prompt_tokens, "prompt token"),
            counted(usage.completion_tokens, "token"),
        ]
        if usage.reasoning_tokens:
            parts.append(f"{usage.reasoning_tokens} of them reasoning")
        if rate is not None:
            parts.append(f"{rate:.1f} tokens/s")
        if self.first_after_s is not None:
            parts.append(f"first token after {self.first_after_s:.2f} s")
        return f"[{'; '.join([', '.join([*parts, *_savings(usage)]), *self._endings()])}]"

    def _rate(self) -> float | None:
        # The first token of each answer comes from the prompt's pass.
        num_decoded = self.completed.usage.completion_tokens - self.num_sequences
        decode_us = self.completed.timing.decode_us
        return num_decoded * 1e6 / decode_us if num_decoded > 0 and decode_us else None

    def _endings(self) -> Iterable[str]:
        """Say what there is to say of the ends, and of how many answers where there are several."""
        counts = Counter(self.finishes)
        if self.num_sequences == 1:
            return list(counts)
        return [f"{count} of {self.num_sequences} {word}" for word, count in counts.items()]


def _savings(usage: common_pb2.Usage) -> Iterable[str]:
    """Say what need not be computed."""
    if usage.cached_prompt_tokens:
        yield f"{counted(usage.cached_prompt_tokens, 'prompt token')} cached"
    if usage.forced_tokens:
        yield f"{counted(usage.forced_tokens, 'token')} without a choice"
    if usage.HasField("drafted_tokens"):
        yield f"{usage.accepted_draft_tokens} of {usage.drafted_tokens} guesses right"
