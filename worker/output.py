"""What the tokens of one sequence become on their way to its reader: text of two channels, and calls of tools.

Text passes, in this order: the detokenizer, the stop strings, the channels, and, where it is content, the parser of
tool calls. Each holds back what it cannot tell yet, and the end flushes all of them in that order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from worker.channels import ChannelSplitter
from worker.detokenizer import Detokenizer
from worker.dialects.call import ToolCall
from worker.dialects.dialect import ToolParser
from worker.events import Channel, TextDelta, TokenDetail, ToolCallDelta
from worker.reasoning import ReasoningMarks, Start
from worker.stops import StopMatcher, Stopped

Delta = TextDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How the output of a request is to be read.

    Attributes:
        marks: around reasoning; None: all is content.
        start: where the prompt left the model.
        is_content_verbatim: a constraint writes the content, so nothing is looked for in it.
        make_parser: makes what finds the calls of tools in the content of one sequence; None: there are none.
        shown: texts of special tokens that are marks, by their id; all other special tokens have no text.
    """

    marks: ReasoningMarks | None = None
    start: Start = Start.BEHIND
    is_content_verbatim: bool = False
    make_parser: Callable[[], ToolParser] | None = None
    shown: Mapping[int, bytes] = field(default_factory=dict[int, bytes])


class Output:
    """The output of one sequence.

    Args:
        detokenizer: a fresh one.
        stop_strings: that end the text.
        form: how it is read.
        call_id: makes the id of a call from its number.
        index: which of the request's sequences it is.

    Attributes:
        num_reasoning: tokens of reasoning, its marks included.
        num_calls: calls of tools that are whole.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop_strings: tuple[str, ...],
        form: OutputFormat,
        call_id: Callable[[int], str],
        index: int = 0,
    ) -> None:
        self.num_reasoning = 0
        self.num_calls = 0
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stop_strings)
        self._splitter = _splitter(form)
        # Stop strings hold text back from the splitter; which channel a token is in must not wait for that.
        self._channels = _splitter(form) if stop_strings else self._splitter
        self._parser = None if form.make_parser is None else form.make_parser()
        self._call_id = call_id
        self._index = index
        self._parts: list[_Part | ToolCallDelta] = []

    @property
    def num_malformed(self) -> int:
        """What looked like a call of a tool and was none; it is content."""
        return 0 if self._parser is None else self._parser.num_malformed

    @property
    def num_mismatched(self) -> int:
        """Arguments of calls that are not of their declared kind; they are kept as written."""
        return 0 if self._parser is None else self._parser.num_mismatched

    def add(self, token_id: int, detail: TokenDetail | None, *, is_text: bool, may_stop: bool) -> str | None:
        """Take a token.

        Args:
            token_id: which.
            detail: what the reader is told of the token itself; None: nothing.
            is_text: whether it adds its text; one that ends the sequence need not.
            may_stop: whether a stop string that is complete within it counts.

        Returns:
            The stop string that is complete; None: there is none.
        """
        text = self._detokenizer.add(token_id) if is_text else ""
        before = self._channels.channel
        if self._channels is not self._splitter:
            self._channels.add(text)
        found = self._stops.add(text, may_stop=may_stop)
        settled = found.text if isinstance(found, Stopped) else found
        pieces = self._splitter.add(settled)
        self._count(before, detail)
        for piece in pieces:
            self._put(piece.channel, piece.text)
        return found.stop_string if isinstance(found, Stopped) else None

    def append(self, text: str) -> None:
        """Add text that is no token's."""
        for piece in self._splitter.add(text):
            self._put(piece.channel, piece.text)

    def finish(self, *, is_stopped: bool = False) -> None:
        """Settle everything that is held.

        Args:
            is_stopped: a stop string has ended the text, so nothing behind it counts.
        """
        if not is_stopped:
            tail = self._stops.add(self._detokenizer.finish())
            self.append(tail.text if isinstance(tail, Stopped) else tail + self._stops.finish())
        for piece in self._splitter.finish():
            self._put(piece.channel, piece.text)
        if self._parser is not None:
            self._put_parsed(self._parser.finish())

    def take(self, *, is_end: bool = False) -> tuple[Delta, ...]:
        """Return what the reader can be told now; tokens that have no text yet are told with what follows."""
        last = self._parts[-1] if self._parts else None
        kept = [last] if isinstance(last, _Part) and not (is_end or last.is_worth_telling) else []
        told = self._parts[: len(self._parts) - len(kept)]
        self._parts = list(kept)
        return tuple(part.delta(self._index) if isinstance(part, _Part) else part for part in told)

    def _count(self, before: Channel, detail: TokenDetail | None) -> None:
        """Count a token in the channel that it begins in, or in the reasoning that it opens."""
        opens = before is Channel.CONTENT and self._channels.channel is Channel.REASONING
        part = self._part(Channel.REASONING if opens else before)
        if opens and len(self._parts) > 1:
            self._move_mark(part)
        part.token_count += 1
        if detail is not None:
            part.tokens.append(detail)
        if part.channel is Channel.REASONING:
            self.num_reasoning += 1

    def _move_mark(self, opened: "_Part") -> None:
        """Count tokens that were only the beginning of the opening mark as its own."""
        before = self._parts[-2]
        if isinstance(before, _Part) and not before.is_worth_telling:
            self._parts.pop(-2)
            opened.token_count += before.token_count
            self.num_reasoning += before.token_count

    def _put(self, channel: Channel, text: str) -> None:
        if channel is Channel.CONTENT and self._parser is not None:
            self._put_parsed(self._parser.add(text))
        elif text:
            self._part(channel).texts.append(text)

    def _put_parsed(self, found: list[str | ToolCall]) -> None:
        for each in found:
            if isinstance(each, str):
                self._part(Channel.CONTENT).texts.append(each)
                continue
            call = ToolCallDelta(
                self.num_calls, self._call_id(self.num_calls), each.name, each.arguments_json, self._index
            )
            self._parts.append(call)
            self.num_calls += 1

    def _part(self, channel: Channel) -> "_Part":
        """Return the part at the end, if it is of this channel, or a new one."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Part) and last.channel is channel:
            return last
        part = _Part(channel)
        self._parts.append(part)
        return part


@dataclass(slots=True)
class _Part:
    """A delta while it is made."""

    channel: Channel
    texts: list[str] = field(default_factory=list[str])
    tokens: list[TokenDetail] = field(default_factory=list[TokenDetail])
    token_count: int = 0

    @property
    def is_worth_telling(self) -> bool:
        return bool(self.texts or self.tokens)

    def delta(self, index: int) -> TextDelta:
        return TextDelta("".join(self.texts), tuple(self.tokens), self.token_count, index, self.channel)


def _splitter(form: OutputFormat) -> ChannelSplitter:
    return ChannelSplitter(form.marks, form.start, is_content_verbatim=form.is_content_verbatim)
