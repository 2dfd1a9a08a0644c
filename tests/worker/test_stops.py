import time

from hypothesis import given
from hypothesis import strategies as st

from worker.stops import StopMatcher, Stopped

TEXTS = st.text(alphabet="abc", max_size=14)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=5).map(tuple)


def at_once(text: str, stops: tuple[str, ...], first: int = 0) -> tuple[str, str | None]:
    """The rule, written down the slow way: the first end of a stop string wins, then the longest that ends there.

    What ends within the `first` characters does not count.
    """
    for end in range(first + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def streamed(parts: list[str], stops: tuple[str, ...], first: int = 0) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    sent, num_read = "", 0
    for part in parts:
        num_read += len(part)
        found = matcher.add(part, may_stop=num_read > first)
        if isinstance(found, Stopped):
            return sent + found.text, found.stop_string
        sent += found
    return sent + matcher.finish(), None


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    borders = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[start:end] for start, end in zip([0, *borders], [*borders, len(text)], strict=True)]


@given(cut_texts(), STOPS)
def test_no_way_of_splitting_changes_text_or_match(cut: tuple[str, list[str]], stops: tuple[str, ...]):
    text, parts = cut
    assert streamed(parts, stops) == at_once(text, stops)


@given(TEXTS, STOPS)
def test_exactly_the_longest_suffix_that_begins_a_stop_string_is_held(text: str, stops: tuple[str, ...]):
    matcher = StopMatcher(stops)
    read = ""
    for character in text:
        if isinstance(matcher.add(character), Stopped):
            return
        read += character
        suffixes = [read[start:] for start in range(len(read) + 1)]
        assert matcher.held == next(
            suffix for suffix in suffixes if any(stop.startswith(suffix) for stop in (*stops, ""))
        )


@given(TEXTS, STOPS, st.integers(0, 14))
def test_a_stop_string_that_may_not_stop_is_text(text: str, stops: tuple[str, ...], first: int):
    assert streamed(list(text), stops, first) == at_once(text, stops, first)


def test_a_stop_string_that_begins_before_it_may_stop_is_found():
    matcher = StopMatcher(("abc", "b"))
    assert [matcher.add(character, may_stop=False) for character in "xab"] == ["x", "", ""]
    assert matcher.held == "ab"
    assert matcher.add("c") == Stopped("", "abc")


def test_a_stop_string_that_was_let_pass_is_not_held_back():
    matcher = StopMatcher(("ab",))
    assert [matcher.add(character, may_stop=False) for character in "ab"] == ["", "ab"]
    assert matcher.held == ""
    assert matcher.add("ab") == Stopped("", "ab")


def test_text_that_shares_prefixes_with_a_stop_word_is_not_lost():
    matcher = StopMatcher((" OPQRSTUVWXY",))
    sent = [matcher.add(character) for character in "O P Q OPQ O"]
    assert sent == ["O", "", " P", "", " Q", "", "", "", "", " OPQ", ""]
    assert matcher.finish() == " O"


def test_nothing_of_a_stop_word_is_sent():
    matcher = StopMatcher(("</answer>!!!",))
    sent = [matcher.add(character) for character in "42</answer>!!"]
    assert sent == ["4", "2", *[""] * 11]
    assert matcher.add("! and more") == Stopped("", "</answer>!!!")


def test_of_two_that_end_together_the_longest_wins():
    assert StopMatcher(("c", "abc")).add("xabc") == Stopped("x", "abc")


def test_the_one_complete_first_wins():
    assert StopMatcher(("abcd", "bc")).add("abcd") == Stopped("a", "bc")


def test_empty_stop_strings_match_nothing():
    assert StopMatcher(("",)).add("abc") == "abc"


def test_many_stop_strings_and_a_long_text_cost_little():
    matcher = StopMatcher(tuple(f"{index:04}" * 16 for index in range(1000)))
    started = time.process_time()
    for _ in range(20_000):
        matcher.add("0a11b")
    assert time.process_time() - started < 5  # each character is read once: a tenth of a second here
