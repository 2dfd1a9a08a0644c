"""How Qwen3-Reranker is asked whether a document answers a query: the next token is "yes" or "no".

Source: the model card of Qwen3-Reranker, whose frame this is to the letter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models.embedding.framing import Cut, Encoder, Ends, Framed, common_start, fit

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ARCHITECTURES = ("qwen3",)
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_MAX_EXPONENT = 700.0  # of a double
_BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class NoAnswersError(ValueError):
    """Raised when "yes" and "no" are not one token each."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query as it stands before every document.

    Attributes:
        text: of query and instruction.
        ids: its tokens where no document follows.
    """

    text: str
    ids: tuple[int, ...]


class Reranker:
    """Makes the tokens of queries with documents.

    Args:
        tokenizer: of the model.

    Attributes:
        yes: token that says that a document answers.
        no: token that says that it does not.

    Raises:
        NoAnswersError: the tokenizer has no such tokens.
    """

    def __init__(self, tokenizer: Encoder) -> None:
        self._tokenizer = tokenizer
        self._ends = Ends.of(tokenizer)
        self._before = (*tokenizer.encode(_BEFORE, False), *self._ends.lead)
        self._behind = (*self._ends.tail, *tokenizer.encode(_BEHIND, False))
        self.yes, self.no = self._answer("yes"), self._answer("no")

    def question(self, query: str, instruction: str = "") -> Question:
        """Return what stands before every document of a query.

        Args:
            query: what is looked for.
            instruction: what makes a document fit; empty: that of a search in the web.
        """
        text = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: "
        return Question(text, tuple(self._tokenizer.encode(text, False)))

    def num_frame_tokens(self, question: Question) -> int:
        """Return how many tokens an empty document takes."""
        return len(self._before) + len(question.ids) + len(self._behind)

    def framed(self, question: Question, document: str, max_tokens: int, cut: Cut) -> Framed | None:
        """Return the tokens of a document behind its question; see `fit`.

        Args:
            question: as `question` made it.
            document: any text.
            max_tokens: of all together.
            cut: what of the document may be left out.
        """
        body = self._tokenizer.encode(question.text + document, False)
        asked = common_start(question.ids, body)
        head = (*self._before, *body[:asked])
        return fit(head, body[asked:], self._behind, max_tokens, cut)

    def _answer(self, word: str) -> int:
        ids: Sequence[int] = self._tokenizer.encode(word, False)
        if len(ids) != 1:
            raise NoAnswersError(word)
        return ids[0]


def score_of(yes: float, no: float) -> float:
    """Return how likely "yes" is, of the two; the logits are finite numbers."""
    return 1 / (1 + math.exp(no - yes)) if no - yes < _MAX_EXPONENT else 0.0
