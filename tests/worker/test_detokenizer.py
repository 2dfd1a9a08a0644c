from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from worker.detokenizer import Detokenizer


def pieces(parts: list[bytes], *, strip_leading_space: bool = False) -> list[str]:
    detokenizer = Detokenizer(lambda index: parts[index], strip_leading_space=strip_leading_space)
    return [detokenizer.add(index) for index in range(len(parts))] + [detokenizer.finish()]


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """Every way of splitting `data` into tokens."""
    flags = st.lists(st.booleans(), min_size=max(len(data) - 1, 0), max_size=max(len(data) - 1, 0))
    return flags.map(lambda is_cut: split(data, is_cut))


def split(data: bytes, is_cut: list[bool]) -> list[bytes]:
    borders = [0, *(index + 1 for index, cut in enumerate(is_cut) if cut), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


WORD = "ďábelské 👋".encode()


def test_a_two_byte_character_waits_for_its_second_byte():
    assert pieces([b"\xc4", b"\x8f", b"a"]) == ["", "ď", "a", ""]


def test_an_emoji_comes_whole_from_two_halves():
    assert pieces([b"\xf0\x9f", b"\x91\x8b"]) == ["", "👋", ""]


def test_an_emoji_comes_whole_from_four_bytes():
    assert pieces([b"\xf0", b"\x9f", b"\x91", b"\x8b"]) == ["", "", "", "👋", ""]


@given(cuts(WORD))
def test_no_split_of_whole_text_shows_a_replacement(parts: list[bytes]):
    found = pieces(parts)
    assert "\ufffd" not in "".join(found)
    assert "".join(found) == "ďábelské 👋"


def test_a_tail_that_is_cut_off_is_flushed_once():
    assert pieces([b"a", b"\xf0\x9f"]) == ["a", "", "\ufffd"]


@given(st.binary(max_size=12).flatmap(cuts))
def test_pieces_joined_equal_the_bytes_decoded_at_once(parts: list[bytes]):
    assert "".join(pieces(parts)) == b"".join(parts).decode("utf-8", "replace")


@given(st.binary(max_size=8).map(lambda tail: b" " + tail).flatmap(cuts))
def test_one_leading_space_is_stripped_however_it_comes(parts: list[bytes]):
    assert "".join(pieces(parts, strip_leading_space=True)) == b"".join(parts).decode("utf-8", "replace")[1:]


def test_a_space_after_the_start_stays():
    assert pieces([b"", b"a", b" b"], strip_leading_space=True) == ["", "a", " b", ""]
