"""Texts become the tokens that their model was trained on, and long ones are cut where the caller says."""

from pathlib import Path

import pytest

from models.checkpoint.tokenizer import Tokenizer, read_tokenizer
from models.embedding.framing import Cut, Ends, common_start, fit
from models.embedding.reranker import NoAnswersError, Reranker
from tests.support.tiny_embedders import END, add_ends, write_embedder, write_reranker
from tests.support.tiny_models import END_TOKEN_ID, write_tokenizer


def tokenizer_of(folder: Path, lead: tuple[str, ...] = (), tail: tuple[str, ...] = ()) -> Tokenizer:
    write_tokenizer(folder)
    if lead or tail:
        add_ends(folder, lead, tail)
    return read_tokenizer(folder)


@pytest.mark.parametrize(
    ("lead", "tail"), [((), ()), ((), (END,)), ((END,), ()), ((END,), (END,)), ((END, END), (END,))]
)
def test_what_a_tokenizer_puts_around_a_text_is_read_off_it(
    tmp_path: Path, lead: tuple[str, ...], tail: tuple[str, ...]
) -> None:
    tokenizer = tokenizer_of(tmp_path, lead, tail)
    ends = Ends.of(tokenizer)
    for text in ("", "a", "the end", "<|end|>"):
        whole = [*ends.lead, *tokenizer.encode(text, False), *ends.tail]
        assert whole == tokenizer.encode(text, True)
    assert ends == Ends((END_TOKEN_ID,) * len(lead), (END_TOKEN_ID,) * len(tail))


def test_special_tokens_that_a_caller_has_put_around_tokens_are_found() -> None:
    ends = Ends((7,), (9,))
    assert ends.around_tokens([7, 1, 2, 9]) == ((7,), [1, 2], (9,))
    assert ends.around_tokens([1, 9, 2]) == ((), [1, 9, 2], ())
    assert ends.around_tokens([9]) == ((), [], (9,))
    assert Ends().around_tokens([1, 2]) == ((), [1, 2], ())


@pytest.mark.parametrize(
    ("max_tokens", "cut", "ids"),
    [
        (6, Cut.NONE, [1, 2, 3, 4, 5, 9]),
        (5, Cut.NONE, None),
        (5, Cut.END, [1, 2, 3, 4, 9]),
        (5, Cut.BEGINNING, [1, 3, 4, 5, 9]),
        (3, Cut.END, [1, 2, 9]),
        (2, Cut.END, None),
        (1, Cut.BEGINNING, None),
    ],
)
def test_only_the_text_is_cut_and_something_of_it_stays(max_tokens: int, cut: Cut, ids: list[int] | None) -> None:
    framed = fit([1], [2, 3, 4, 5], [9], max_tokens, cut)
    assert (None if framed is None else list(framed.ids)) == ids
    assert framed is None or framed.is_cut == (max_tokens < 6)


def test_no_text_at_all_is_fine() -> None:
    framed = fit([1], [], [9], 2, Cut.NONE)
    assert framed is not None
    assert list(framed.ids) == [1, 9]
    assert fit([1], [], [9], 1, Cut.END) is None


def test_common_beginnings_are_counted() -> None:
    assert [common_start(a, b) for a, b in (([], [1]), ([1, 2], [1, 3]), ([1, 2], [1, 2, 3]))] == [0, 1, 2]


def test_a_document_is_cut_and_what_is_asked_of_it_is_not(tmp_path: Path) -> None:
    reranker = Reranker(read_tokenizer(write_reranker(tmp_path)))
    question = reranker.question("q", "i")
    whole = reranker.framed(question, "abcdef", 1000, Cut.NONE)
    assert whole is not None
    for cut, left in ((Cut.END, "abcd"), (Cut.BEGINNING, "cdef")):
        framed = reranker.framed(question, "abcdef", len(whole.ids) - 2, cut)
        shorter = reranker.framed(question, left, 1000, Cut.NONE)
        assert framed is not None
        assert shorter is not None
        assert (framed.ids, framed.is_cut) == (shorter.ids, True)
    assert reranker.framed(question, "abcdef", len(whole.ids) - 1, Cut.NONE) is None
    assert reranker.framed(question, "abcdef", reranker.num_frame_tokens(question), Cut.END) is None
    empty = reranker.framed(question, "", 1000, Cut.NONE)
    assert empty is not None
    assert len(empty.ids) == reranker.num_frame_tokens(question)


def test_a_tokenizer_without_yes_and_no_cannot_rank(tmp_path: Path) -> None:
    with pytest.raises(NoAnswersError, match="yes"):
        Reranker(read_tokenizer(write_embedder(tmp_path)))
