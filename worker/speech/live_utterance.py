"""What is known of the text of one utterance while it is spoken. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.whisper.decoding import WindowText
from models.whisper.words import Word
from worker.speech.live_agreement import Agreement, Piece, tokens_of
from worker.speech.live_loops import lost_start
from worker.speech.live_turns import Turn


@dataclass(frozen=True, slots=True)
class Heard:
    """What a hearing found.

    Attributes:
        stop: sample up to which it heard.
        text: of it; its tokens are text alone.
        pieces: of the text, up to where it is lost in a loop.
        language: that it was decoded in.
        probability: of the language; 0 where nobody looked.
        words: placed, seconds from the start of the utterance's audio; None: they were not asked for.
        is_believed: whether it says anything, and that passed the thresholds or is the best that there is.
        may_agree: whether it may make text stable.
        may_be_final: whether nothing better can be found for this audio.
    """

    stop: int
    text: WindowText
    pieces: tuple[Piece, ...]
    language: str | None
    probability: float
    words: tuple[Word, ...] | None
    is_believed: bool
    may_agree: bool
    may_be_final: bool


class Utterance:
    """One turn and its text.

    Args:
        turn: its audio.

    Attributes:
        agreement: its stable text.
        heard: the last hearing.
        stable_before: sample before which all of the stable text was said.
        language: of the stable text; None while there is none.
        segment_id: once anything was told of it.
        revision: how often it was told of.
        told: its stable and unstable text when it was.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.agreement = Agreement()
        self.heard: Heard | None = None
        self.stable_before = turn.start
        self.language: str | None = None
        self.segment_id: int | None = None
        self.revision = 0
        self.told: tuple[str, str] = ("", "")

    @property
    def is_covered(self) -> bool:
        """Whether all of its speech so far was heard as well as can be."""
        heard = self.heard
        if heard is None or not heard.may_be_final or heard.stop < self.turn.needed:
            return False
        # What was heard before the cut does not say where its words are.
        return not self.turn.is_cut or heard.words is not None or not heard.pieces

    def hear(self, heard: Heard, *, agrees: bool) -> None:
        """Take a hearing.

        Args:
            heard: what it found.
            agrees: whether what it shares with the one before becomes stable.
        """
        before, self.heard = self.heard, heard
        if not (agrees and heard.is_believed and heard.may_agree):
            return
        num_stable = len(self.agreement.tokens)
        self.agreement.hear(heard.pieces)
        if len(self.agreement.tokens) > num_stable and before is not None:
            self.stable_before = before.stop

    def said(self) -> tuple[int, ...]:
        """Return the tokens of its text as it is known now, which begins with the stable text."""
        stable = self.agreement.tokens
        if self.heard is None or not self.heard.is_believed:
            return stable
        tokens = tokens_of(self.heard.pieces)
        return tokens if tokens[: len(stable)] == stable else stable


def without_loop(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return pieces up to the second round of a loop that nobody says."""
    places = [place for place, piece in enumerate(pieces) if piece.word]
    lost = lost_start([pieces[place].word for place in places])
    return tuple(pieces if lost is None else pieces[: places[lost]])
