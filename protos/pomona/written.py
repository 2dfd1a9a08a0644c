"""What has come of an answer."""

from dataclasses import dataclass, field

from pomona.v1 import common_pb2
from pomona.v1 import generation_pb2 as g

Event = (
    g.Waiting
    | g.GenerationStarted
    | g.PrefillProgress
    | g.PromptTokens
    | g.TokenDelta
    | g.ToolCallDelta
    | g.SequenceFinished
    | g.GenerationCompleted
)


@dataclass
class WrittenSequence:
    """One sequence of an answer; `tool_calls`, `tokens` and `finish` are as in the contract's `Sequence`."""

    tool_calls: list[g.ToolCall] = field(default_factory=list[g.ToolCall])
    tokens: list[g.TokenInfo] = field(default_factory=list[g.TokenInfo])
    finish: g.Finish | None = None
    _content: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """What it says."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """What it reasoned before."""
        return "".join(self._reasoning)

    def add(self, delta: g.TokenDelta) -> None:
        """Add new output."""
        self.tokens.extend(delta.tokens)
        if delta.channel == g.CHANNEL_CONTENT:
            self._content.append(delta.text)
        elif delta.channel == g.CHANNEL_REASONING:
            self._reasoning.append(delta.text)

    def add_call(self, delta: g.ToolCallDelta) -> None:
        """Add a piece of a call."""
        while len(self.tool_calls) <= delta.call_index:
            self.tool_calls.append(g.ToolCall())
        call = self.tool_calls[delta.call_index]
        call.id, call.name = delta.id or call.id, delta.name or call.name
        call.arguments_json += delta.arguments_json_delta


@dataclass
class Written:
    """An answer, put together from its events.

    Attributes:
        started: the model that answers, the request's id, tokens of the prompt, the seed.
        sequences: by their index; one, where no more were asked for.
        usage: tokens; set once the answer is complete.
        timing: times of the server; set once the answer is complete.
    """

    started: g.GenerationStarted | None = None
    sequences: dict[int, WrittenSequence] = field(default_factory=lambda: {0: WrittenSequence()})
    usage: common_pb2.Usage | None = None
    timing: common_pb2.Timing | None = None

    @property
    def text(self) -> str:
        """What the first sequence says."""
        return self.sequences[0].text

    @property
    def reasoning(self) -> str:
        """What the first sequence reasoned before."""
        return self.sequences[0].reasoning

    @property
    def tool_calls(self) -> list[g.ToolCall]:
        """The calls of tools in the first sequence."""
        return self.sequences[0].tool_calls

    @property
    def finish(self) -> g.Finish | None:
        """Why the first sequence ended."""
        return self.sequences[0].finish

    def take(self, response: g.StreamGenerateResponse) -> Event | None:
        """Add an event and return it, or None for one that this version does not know."""
        kind = response.WhichOneof("event")
        if kind is None:
            return None
        event: Event = getattr(response, kind)
        if isinstance(event, g.TokenDelta | g.ToolCallDelta | g.SequenceFinished):
            self._take_output(event)
        elif isinstance(event, g.GenerationStarted):
            self.started = event
        elif isinstance(event, g.GenerationCompleted):
            self.usage, self.timing = event.usage, event.timing
        return event

    def _take_output(self, event: g.TokenDelta | g.ToolCallDelta | g.SequenceFinished) -> None:
        sequence = self.sequences.setdefault(event.sequence_index, WrittenSequence())
        if isinstance(event, g.TokenDelta):
            sequence.add(event)
        elif isinstance(event, g.ToolCallDelta):
            sequence.add_call(event)
        else:
            sequence.finish = event.finish


def content_of(event: Event) -> str:
    """Return what an event adds to the text of the first sequence."""
    if isinstance(event, g.TokenDelta) and event.channel == g.CHANNEL_CONTENT and event.sequence_index == 0:
        return event.text
    return ""
