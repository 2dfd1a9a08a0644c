"""A vocabulary of letters, a few longer tokens, and marks of reasoning as special tokens or as plain text."""

from worker.guide import MarkTokens
from worker.reasoning import ReasoningMarks

THINK = ReasoningMarks("<think>", "</think>")
OPEN, CLOSE, END = 200, 201, 202
# Longer tokens, some of which hold the end of a mark and more.
LONG = {210: b"</", 211: b"think", 212: b">\n\n", 213: b">{", 214: b">", 215: "ď".encode()[:1], 216: "ď".encode()[1:]}
SPECIAL = {OPEN: b"<think>", CLOSE: b"</think>"}
VOCAB_SIZE = 220


def token_bytes(token_id: int) -> bytes:
    """Return the text of a token; none of a special one."""
    if token_id < 128:
        return bytes([token_id])
    return LONG.get(token_id, b"")


def letters(text: str) -> list[int]:
    """Encode with a token for each letter, longer ones where a mark is plain text."""
    ids: list[int] = []
    while text:
        known = next(
            (token_id for token_id in (210, 211, 214) if text.startswith(LONG[token_id].decode())), ord(text[0])
        )
        ids.append(known)
        text = text[len(token_bytes(known)) :]
    return ids


def special(text: str) -> list[int]:
    """Encode marks as the special tokens that they are."""
    for token_id, mark in SPECIAL.items():
        if text == mark.decode():
            return [token_id]
    return letters(text)


SINGLE = MarkTokens(THINK, special, token_bytes, SPECIAL, VOCAB_SIZE)
SEVERAL = MarkTokens(THINK, letters, token_bytes, {}, VOCAB_SIZE)
