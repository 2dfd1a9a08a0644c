"""One of the answers of a generation while it comes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pomona.v1 import generation_pb2

Kind = Literal["answer", "reasoning", "call"]


@dataclass(slots=True)
class Sequence:
    """What came of one answer so far.

    Attributes:
        parts: reasoning, text and tool calls in the order in which they came; of each kind what was joined.
        calls: the tool calls, whole once the next thing comes.
        tokens: those that came with log-probabilities.
        is_finished: whether no more comes.
        finish: a word about its end where there is one to say.
    """

    parts: list[tuple[Kind, str]] = field(default_factory=list[tuple[Kind, str]])
    calls: list[generation_pb2.ToolCall] = field(default_factory=list[generation_pb2.ToolCall])
    tokens: list[generation_pb2.TokenInfo] = field(default_factory=list[generation_pb2.TokenInfo])
    is_finished: bool = False
    finish: str = ""
    _open_call: int | None = None

    @property
    def text(self) -> str:
        """The answer alone."""
        return "".join(text for kind, text in self.parts if kind == "answer")

    @property
    def reasoning(self) -> str:
        """The reasoning alone."""
        return "".join(text for kind, text in self.parts if kind == "reasoning")

    def take_delta(self, delta: generation_pb2.TokenDelta) -> Iterator[tuple[Kind, str]]:
        """Take more text; return what can be printed now."""
        yield from self.close_call()
        self.tokens += [token for token in delta.tokens if token.HasField("logprob")]
        if delta.text:
            kind: Kind = "reasoning" if delta.channel == generation_pb2.CHANNEL_REASONING else "answer"
            yield self._add(kind, delta.text)

    def take_call(self, delta: generation_pb2.ToolCallDelta) -> Iterator[tuple[Kind, str]]:
        """Take more of a tool call; return what can be printed now: the call before it."""
        if delta.call_index != self._open_call:
            yield from self.close_call()
            self._open_call = delta.call_index
            self.calls.append(generation_pb2.ToolCall(id=delta.id, name=delta.name))
        self.calls[-1].arguments_json += delta.arguments_json_delta

    def close_call(self) -> Iterator[tuple[Kind, str]]:
        """Return the tool call that came last, where it was not returned yet: nothing more comes of it."""
        if self._open_call is not None:
            self._open_call = None
            yield self._add("call", f"{self.calls[-1].name} {self.calls[-1].arguments_json}")

    def _add(self, kind: Kind, text: str) -> tuple[Kind, str]:
        self.parts.append((kind, text))
        return kind, text
