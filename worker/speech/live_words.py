"""When the words of an utterance were said. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from models.whisper.words import Word, merge_punctuation, pace_of, settle, shorten_at_sentence_ends

_SAME_GAP_S = 0.05  # of gaps that differ by less the later is taken
# Where an utterance without a pause is cut: no further back than this, for the rest is the next one's.
_MAX_BACK_S = 5.0


def placed_words(
    words: Sequence[Word], num_tokens: int, start_s: float, speech_s: tuple[float, float], before_s: float
) -> list[Word]:
    """Return an utterance's words as they are told.

    Args:
        words: as the alignment found them, seconds from the start of what was heard.
        num_tokens: of the text that is told.
        start_s: of what was heard.
        speech_s: between which seconds somebody spoke.
        before_s: where the utterance before ended.

    Returns:
        Words in order, none before `before_s` nor beyond the speech's end, seconds of the recording.
    """
    taken = words_of(words, num_tokens)
    pace = pace_of(taken)
    merged = merge_punctuation(shorten_at_sentence_ends(taken, pace))
    shifted = [replace(word, start_s=start_s + word.start_s, end_s=start_s + word.end_s) for word in merged]
    settled, _, _ = settle(shifted, *speech_s, before_s, pace)
    found: list[Word] = []
    last_s = before_s
    for word in settled:
        begin_s = min(max(word.start_s, last_s), max(speech_s[1], last_s))
        last_s = min(max(word.end_s, begin_s), max(speech_s[1], begin_s))
        found.append(replace(word, start_s=begin_s, end_s=last_s))
    return found


def words_of(words: Sequence[Word], num_tokens: int) -> list[Word]:
    """Return the words of the first so many tokens."""
    found: list[Word] = []
    for word in words:
        num_tokens -= len(word.tokens)
        if num_tokens < 0:
            break
        found.append(word)
    return found


def cut_behind(words: Sequence[Word], num_stable: int, end_s: float) -> tuple[int, float]:
    """Find where an utterance that has no pause is best cut: in the widest gap between its last words.

    Args:
        words: as the alignment found them, seconds from the start of the utterance.
        num_stable: tokens that stay.
        end_s: of the utterance.

    Returns:
        How many tokens stay, and where the rest begins, in seconds from the start of the utterance.
    """
    best: tuple[float, int, float] | None = None
    num_tokens = 0
    for word, following in pairwise(words):
        num_tokens += len(word.tokens)
        gap_s, place_s = following.start_s - word.end_s, (word.end_s + following.start_s) / 2
        is_allowed = num_tokens >= num_stable and end_s - _MAX_BACK_S <= place_s <= end_s
        # A mark on its own belongs to the word before it.
        if is_allowed and following.text.strip().isalnum() and (best is None or gap_s > best[0] - _SAME_GAP_S):
            best = max(gap_s, best[0] if best else gap_s), num_tokens, place_s
    if best is None:
        return sum(len(word.tokens) for word in words), end_s
    return best[1], best[2]
