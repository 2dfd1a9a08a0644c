"""Segments as lines, SubRip, WebVTT and a table."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pomona.v1 import transcription_pb2 as t

from gateway.cli.subtitles import Subtitles, clock

from .listener import segment, word

HOUR_S = 3600


def written(name: str, *segments: t.Segment, **options: bool) -> str:
    subtitles = Subtitles(name, **options)
    return subtitles.header + "".join(map(subtitles.add, segments))


def test_lines_have_a_segment_each() -> None:
    assert written("txt", segment(" Hello there."), segment(" And\nbye.", 1, 2)) == "Hello there.\nAnd bye.\n"


def test_subrip_is_numbered_and_has_commas() -> None:
    assert written("srt", segment(" One.", 0, 1.5), segment(" Two.", 1.5, 62.0625)) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n00:00:01,500 --> 00:01:02,062\nTwo.\n\n"
    )


def test_webvtt_has_its_header_and_hours() -> None:
    assert written("vtt", segment(" One.", 0, 1.5)) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n"


def test_table_has_milliseconds_and_no_tabs_in_its_text() -> None:
    assert written("tsv", segment(" One\ttwo\nthree", 0.25, 1.5)) == "start\tend\ttext\n250\t1500\tOne two three\n"


@pytest.mark.parametrize(
    ("name", "empty"), [("txt", ""), ("srt", ""), ("vtt", "WEBVTT\n\n"), ("tsv", "start\tend\ttext\n")]
)
@pytest.mark.parametrize("text", [None, "", "  ", "\n"])
def test_where_nothing_is_said_the_file_is_valid_and_empty(name: str, empty: str, text: str | None) -> None:
    assert written(name, *([] if text is None else [segment(text)])) == empty


def test_times_beyond_a_hundred_hours_have_more_digits() -> None:
    late = segment("Late.", 100 * HOUR_S + 61.5, 1000 * HOUR_S)
    assert "\n100:01:01,500 --> 1000:00:00,000\n" in written("srt", late)
    assert "\n100:01:01.500 --> 1000:00:00.000\n" in written("vtt", late)


def test_time_is_rounded_to_the_nearest_millisecond_and_never_below_0() -> None:
    odd = segment("Odd.")
    odd.start_offset.seconds, odd.start_offset.nanos = 0, -5
    odd.end_offset.seconds, odd.end_offset.nanos = 1, 999_600_000
    assert written("tsv", odd).endswith("\n0\t2000\tOdd.\n")


def test_arrow_in_a_text_is_not_read_as_times() -> None:
    said = segment(" a --> b <i> & c")
    assert "\na -> b <i> & c\n" in written("srt", said)
    assert "\na --&gt; b &lt;i&gt; &amp; c\n" in written("vtt", said)
    assert written("txt", said) == "a --> b <i> & c\n"


def test_blank_lines_within_a_cue_would_end_it() -> None:
    said = segment(" One\r\n\r\n  two\u2028\n\nthree ")
    assert written("srt", said).split("\n")[2:] == ["One", "two", "three", "", ""]
    assert written("vtt", said).endswith("\nOne\ntwo\nthree\n\n")


def test_text_from_right_to_left_stays_as_it_is() -> None:
    text = "\N{HEBREW LETTER SHIN}\N{HEBREW LETTER LAMED}, \N{ARABIC LETTER SEEN}\N{ARABIC LETTER LAM} 12!"
    for name in ("txt", "srt", "vtt", "tsv"):
        assert text in written(name, segment(f" {text}"))


def test_cue_begins_no_earlier_than_the_one_before_it_ended() -> None:
    table = written("tsv", segment("a", 0, 2), segment("b", 1, 1.5), segment("c", 1, 3))
    assert table.splitlines()[1:] == ["0\t2000\ta", "2000\t2001\tb", "2001\t3000\tc"]


WORDS = (word(" Good", 0.5, 0.75), word(" day", 0.75, 1), word(" & bye", 1.25, 1.5))


def test_words_are_cues_of_their_own_in_subrip_and_tables() -> None:
    said = segment(" Good day & bye", 0.5, 1.5, words=WORDS)
    rows = ["500\t750\tGood", "750\t1000\tday", "1250\t1500\t& bye"]
    assert written("tsv", said, words_apart=True).splitlines()[1:] == rows
    assert written("srt", said, words_apart=True).startswith("1\n00:00:00,500 --> 00:00:00,750\nGood\n\n2\n")


def test_words_have_times_within_the_cue_in_webvtt() -> None:
    said = segment(" Good day & bye", 0.5, 1.5, words=WORDS)
    cue = "00:00:00.500 --> 00:00:01.500\nGood <00:00:00.750>day <00:00:01.250>&amp; bye\n\n"
    assert written("vtt", said, words_apart=True) == f"WEBVTT\n\n{cue}"
    assert written("vtt", said) == "WEBVTT\n\n00:00:00.500 --> 00:00:01.500\nGood day &amp; bye\n\n"


def test_words_without_blanks_between_are_joined_without() -> None:
    said = segment("\u4f60\u597d", 0, 1, words=(word("\u4f60", 0, 0.5), word("\u597d", 0.5, 1)))
    assert "\n\u4f60<00:00:00.500>\u597d\n" in written("vtt", said, words_apart=True)


def test_time_of_a_word_that_does_not_move_on_is_left_out() -> None:
    words = (word("a", 0, 1), word(" b", 1, 1), word(" c", 1, 2), word(" d", 2, 2))
    assert "\na <00:00:01.000>b c d\n" in written("vtt", segment("a b c d", 0, 2, words=words), words_apart=True)


def test_segment_without_words_is_one_cue() -> None:
    assert written("tsv", segment("Hm.", 0, 1), words_apart=True).endswith("\n0\t1000\tHm.\n")


def test_channels_are_named_and_may_sound_together() -> None:
    said = (segment("a", 0, 1), segment("b", 0.5, 2.5, channel=1), segment("c", 2, 3))
    assert written("txt", *said, has_channels=True) == "[channel 0] a\n[channel 1] b\n[channel 0] c\n"
    assert written("tsv", *said, has_channels=True).splitlines()[::2] == [
        "start\tend\tchannel\ttext",
        "500\t2500\t1\tb",
    ]
    assert "\n2\n00:00:00,500 --> 00:00:02,500\n[channel 1] b\n" in written("srt", *said, has_channels=True)
    assert "\n<v channel 1>b\n" in written("vtt", *said, has_channels=True)


def milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d{2,}):(\d\d):(\d\d)\.(\d{3})", text)
    assert match is not None, text
    hours, minutes, seconds, rest = map(int, match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest


@given(st.integers(0, 10**10))
def test_clock_can_be_read_back(time_ms: int) -> None:
    assert milliseconds(clock(time_ms)) == time_ms


PIECES = st.text(st.sampled_from("a \n\r\t-><&\u2028\x85\u05d0"), max_size=12)
TIMES = st.integers(0, 4000).map(lambda each: each / 1000)


@given(st.lists(st.tuples(PIECES, TIMES, TIMES), max_size=6))
def test_whatever_is_said_players_find_every_cue(said: list[tuple[str, float, float]]) -> None:
    segments = [segment(text, start, end) for text, start, end in said]
    kept = [each for each in segments if each.stable_text.strip()]
    text = written("vtt", *segments)
    head, *cues = text.split("\n\n")
    assert (head, cues.pop()) == ("WEBVTT", "")
    assert len(cues) == len(kept)
    last_ms = 0
    for cue in cues:
        times, *lines = cue.split("\n")
        start_ms, end_ms = map(milliseconds, times.split(" --> "))
        assert last_ms <= start_ms < end_ms
        assert lines
        assert not any("-->" in line or "<" in line or not line.strip() for line in lines)
        last_ms = end_ms
