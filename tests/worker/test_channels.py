"""Text is split into reasoning and content, whatever pieces it comes in."""

import random
from collections.abc import Callable, Sequence

import pytest

from worker.channels import ChannelSplitter, Piece
from worker.events import Channel
from worker.reasoning import ReasoningMarks, Start

THINK = ReasoningMarks("<think>", "</think>")
GEMMA = ReasoningMarks("<|channel>thought", "<channel|>")
MAGISTRAL = ReasoningMarks("[THINK]", "[/THINK]")

Split = Callable[[Sequence[str]], tuple[str, str]]


def splitter(
    marks: ReasoningMarks | None = THINK, start: Start = Start.BEFORE, *, verbatim: bool = False
) -> ChannelSplitter:
    return ChannelSplitter(marks, start, is_content_verbatim=verbatim)


def split(subject: ChannelSplitter, pieces: Sequence[str]) -> tuple[str, str]:
    """Return the joined reasoning and the joined content."""
    found: list[Piece] = [piece for text in pieces for piece in subject.add(text)] + subject.finish()
    assert all(piece.text for piece in found)
    return (
        "".join(piece.text for piece in found if piece.channel is Channel.REASONING),
        "".join(piece.text for piece in found if piece.channel is Channel.CONTENT),
    )


CASES = {
    "a whole block": (THINK, Start.BEFORE, "<think>\nwhy\n</think>\n\nyes", "why", "yes"),
    "opened by the prompt": (THINK, Start.INSIDE, "\nwhy\n</think>\n\nyes", "why", "yes"),
    "closed by the prompt": (THINK, Start.BEHIND, "\nyes\n", "", "\nyes\n"),
    "no reasoning": (THINK, Start.BEFORE, "\nyes <thin ice\n", "", "\nyes <thin ice\n"),
    "nothing but line breaks": (THINK, Start.BEFORE, "\n\n", "", "\n\n"),
    "line breaks before the mark": (THINK, Start.BEFORE, "\n<think>why</think>yes", "why", "yes"),
    "an empty block": (THINK, Start.BEFORE, "<think>\n\n</think>\n\nyes", "", "yes"),
    "cut inside": (THINK, Start.INSIDE, "why\n\nthen </thin", "why\n\nthen </thin", ""),
    "cut inside at line breaks": (THINK, Start.INSIDE, "why\n\n", "why\n\n", ""),
    "nothing behind": (THINK, Start.INSIDE, "why\n</think>\n\n", "why", ""),
    "line breaks within": (THINK, Start.INSIDE, "a\n\nb\n</think>\nc\n\nd\n", "a\n\nb", "c\n\nd\n"),
    "half a mark within": (THINK, Start.INSIDE, "a\n</b></think>c", "a\n</b>", "c"),
    "opened twice": (THINK, Start.INSIDE, "<think>\na</think>b", "a", "b"),
    "closed twice": (THINK, Start.INSIDE, "a</think>b</think>c", "a", "bc"),
    "two blocks": (THINK, Start.BEFORE, "<think>a</think>b<think>c</think>d", "ac", "bd"),
    "a mark in a mark": (THINK, Start.INSIDE, "a<</think>/think>b", "a<", "/think>b"),
    "a channel": (GEMMA, Start.BEFORE, "<|channel>thought\nwhy\n<channel|>yes", "why", "yes"),
    "brackets": (MAGISTRAL, Start.BEFORE, "[THINK]why[/THINK]yes [TH", "why", "yes [TH"),
    "no marks": (None, Start.BEHIND, "<think>why</think>yes", "", "<think>why</think>yes"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_cut_gives_the_same_channels(name: str):
    marks, start, text, reasoning, content = CASES[name]
    assert split(splitter(marks, start), [text]) == (reasoning, content)
    assert split(splitter(marks, start), list(text)) == (reasoning, content)
    for at in range(1, len(text)):
        assert split(splitter(marks, start), [text[:at], text[at:]]) == (reasoning, content)


def test_text_goes_out_as_soon_as_no_mark_can_begin_in_it():
    subject = splitter(start=Start.INSIDE)
    assert subject.add("so ") == [Piece(Channel.REASONING, "so ")]
    assert subject.add("</thin") == []
    assert subject.held == "</thin"
    assert subject.add("g\n") == [Piece(Channel.REASONING, "</thing")]
    assert subject.add("</think>\nyes") == [Piece(Channel.CONTENT, "yes")]


def test_what_a_constraint_writes_is_handed_on_as_it_is():
    text = '\n{"a": "<think>"}\n</think>'
    assert split(splitter(start=Start.INSIDE, verbatim=True), ["why\n</think>", text]) == ("why", text)
    assert split(splitter(verbatim=True), list(text)) == ("", text)
    assert split(splitter(start=Start.BEHIND, verbatim=True), list(text)) == ("", text)


def test_the_channel_is_that_of_the_text_so_far():
    subject = splitter()
    told = []
    for piece in ("<think>", "a", "</think>", "b"):
        subject.add(piece)
        told.append(subject.channel)
    assert told == [Channel.REASONING, Channel.REASONING, Channel.CONTENT, Channel.CONTENT]


# Random texts, made of what is hard to tell apart.

SHARDS = (
    "<think>",
    "</think>",
    "<",
    "</",
    "think",
    ">",
    "\n",
    "\n\n",
    "a",
    "é👋",
    "<thi",
    "nk>",
    "<|channel>thought",
    "<channel|>",
)


def differs(make: Callable[[ReasoningMarks, Start, bool], ChannelSplitter], seed: int) -> bool:
    """Say whether a random text is split otherwise when it is cut at random, or a mark is left in it."""
    rng = random.Random(seed)
    marks, start, verbatim = rng.choice([THINK, GEMMA]), rng.choice(list(Start)), rng.random() < 0.3
    text = "".join(rng.choice(SHARDS) for _ in range(rng.randrange(1, 14)))
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(8)))
    pieces = [text[left:right] for left, right in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = (split(make(marks, start, verbatim), each) for each in ([text], pieces))
    has_mark = not verbatim and any(mark in channel for mark in (marks.open, marks.close) for channel in cut)
    is_longer = len(cut[0]) + len(cut[1]) > len(text)
    return whole != cut or is_longer or (has_mark and start is not Start.BEHIND and not _is_made(text, marks))


def _is_made(text: str, marks: ReasoningMarks) -> bool:
    """Say whether leaving out marks brings the halves of another together."""
    for mark in (marks.open, marks.close):
        text = text.replace(mark, "")
    return any(mark in text.replace("\n", "") for mark in (marks.open, marks.close))


def test_random_texts_are_split_alike_however_they_are_cut():
    seeds = [seed for seed in range(2000) if differs(plain, seed)]
    assert not seeds, f"seeds {seeds}"


def plain(marks: ReasoningMarks, start: Start, verbatim: bool) -> ChannelSplitter:
    return splitter(marks, start, verbatim=verbatim)


class Hasty(ChannelSplitter):
    """Holds nothing back but a whole mark's beginning of one character less than it should."""

    def _num_kept(self, marks: ReasoningMarks) -> int:
        return max(0, super()._num_kept(marks) - 1)


class Tidy(ChannelSplitter):
    """Leaves out line breaks at the end of each piece."""

    def add(self, text: str) -> list[Piece]:
        return super().add(text.rstrip("\n"))


@pytest.mark.parametrize("kind", [Hasty, Tidy])
def test_the_random_texts_catch_a_splitter_that_depends_on_the_cuts(kind: type[ChannelSplitter]):
    def make(marks: ReasoningMarks, start: Start, verbatim: bool) -> ChannelSplitter:
        return kind(marks, start, is_content_verbatim=verbatim)

    assert sum(differs(make, seed) for seed in range(300)) > 10
