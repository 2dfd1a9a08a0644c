"""When each word was said: the path of the decoder's attention over the speech.

Source: OpenAI's whisper, `timing.py`; dynamic time warping: Sakoe and Chiba 1978.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from models.whisper.config import FRAMES_PER_POSITION
from models.whisper.decoding import DecodingOptions
from models.whisper.model import Part, Whisper
from models.whisper.rules import Floats
from models.whisper.state import Memory, Texts
from models.whisper.tokenizer import SECONDS_PER_TIME, WhisperTokenizer
from models.whisper.words import Word

_MEDIAN_WIDTH = 7
_BOTH, _UP, _LEFT = 0, 1, 2


def align(
    model: Whisper,
    tokenizer: WhisperTokenizer,
    memory: Memory,
    tokens: Sequence[int],
    options: DecodingOptions,
    num_frames: int,
) -> list[Word]:
    """Find the words of a window's text.

    Args:
        model: that heard the window.
        tokenizer: whose ids.
        memory: what it heard.
        tokens: of the text, without times and controls.
        options: that the text was decoded with.
        num_frames: of the window that are not padding.

    Returns:
        Words in order, seconds from the start of the window; none where there is no text.
    """
    if not tokens:
        return []
    prompt = tokenizer.prompt(options.language, options.task, with_times=False)
    fed = mx.array([[*prompt, *tokens, tokenizer.end]])
    scores: list[mx.array] = []
    hidden = model.hidden([Part(fed, Texts(memory))], scores)[0]
    # What the last token of the prompt and those of the text but the last say of the next.
    logits = model.head(hidden[:, len(prompt) - 1 : -2])[0, :, : tokenizer.end]
    chances = mx.softmax(logits.astype(mx.float32), axis=-1)
    said = mx.take_along_axis(chances, mx.array(list(tokens))[:, None], axis=1)[:, 0]
    weights = np.array(_attention(model, scores, num_frames))[:, len(prompt) - 1 : -1]
    rows, columns = warp(-weights.mean(axis=0))
    return _words(tokenizer, [*tokens], options.language, (rows, columns), np.array(said, np.float32))


def warp(costs: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the cheapest path from the first to the last cell that never goes back.

    Args:
        costs: [N, M].

    Returns:
        Rows and columns of the path's cells.
    """
    num_rows, num_columns = costs.shape
    totals = np.full((num_rows + 1, num_columns + 1), np.inf, np.float32)
    totals[0, 0] = 0
    moves = np.full((num_rows + 1, num_columns + 1), _LEFT, np.int8)
    # Cells of a diagonal need only the two diagonals before it.
    for diagonal in range(2, num_rows + num_columns + 1):
        i, j = _diagonal(diagonal, num_rows, num_columns)
        both, up, left = totals[i - 1, j - 1], totals[i - 1, j], totals[i, j - 1]
        move = np.where((both < up) & (both < left), _BOTH, np.where((up < both) & (up < left), _UP, _LEFT))
        moves[i, j] = move
        totals[i, j] = costs[i - 1, j - 1] + np.choose(move, (both, up, left))
    return _backwards(moves)


def _diagonal(number: int, num_rows: int, num_columns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows and columns, from 1, of the cells whose sum is `number`."""
    rows = np.arange(max(1, number - num_columns), min(num_rows, number - 1) + 1, dtype=np.intp)
    return rows, number - rows


def _backwards(moves: NDArray[np.int8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    moves[0, :], moves[:, 0] = _LEFT, _UP
    row, column = (size - 1 for size in moves.shape)
    path: list[tuple[int, int]] = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        move: int = moves[row, column].item()
        row, column = row - (move != _LEFT), column - (move != _UP)
    cells = np.array(path[::-1], dtype=np.intp)
    return cells[:, 0], cells[:, 1]


def median_filter(values: Floats, width: int = _MEDIAN_WIDTH) -> Floats:
    """Return the median of each number and its neighbours along the last axis, mirrored at both ends.

    A row that is shorter than half the width stays as it is.
    """
    margin = width // 2
    if values.shape[-1] <= margin:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(margin, margin)], mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def _attention(model: Whisper, scores: Sequence[mx.array], num_frames: int) -> Floats:
    """Return where the alignment heads look, [heads, T, positions], as distances from what is usual for a position."""
    heads = [scores[layer][0, head] for layer, head in model.config.timing_heads]
    seen = mx.stack(heads)[:, :, : max(1, num_frames // FRAMES_PER_POSITION)]
    weights = mx.softmax(seen, axis=-1, precise=True).astype(mx.float32)
    mean = mx.mean(weights, axis=-2, keepdims=True)
    deviation = mx.sqrt(mx.var(weights, axis=-2, keepdims=True))
    return median_filter(np.array((weights - mean) / mx.maximum(deviation, 1e-20), np.float32))


def _words(
    tokenizer: WhisperTokenizer,
    tokens: list[int],
    language: str | None,
    path: tuple[NDArray[np.intp], NDArray[np.intp]],
    chances: Floats,
) -> list[Word]:
    rows, columns = path
    starts = columns[np.flatnonzero(np.diff(rows, prepend=-1))]  # where each token, and the end, begins
    found: list[Word] = []
    first = 0
    for text, ids in tokenizer.split_words(tokens, language):
        last = first + len(ids)
        found.append(
            Word(
                text=text,
                tokens=tuple(ids),
                start_s=float(starts[first] * SECONDS_PER_TIME),
                end_s=float(starts[last] * SECONDS_PER_TIME),
                probability=float(chances[first:last].mean()),
            )
        )
        first = last
    return found
