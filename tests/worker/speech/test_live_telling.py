"""What callers of a live stream are told, of one channel and of several."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from models.whisper.decoding import WindowText
from tests.worker.speech.live_stage import ENGLISH, TOKENIZER, window_text
from worker.events import SpeechSegment
from worker.speech.live_agreement import pieces_of, tokens_of
from worker.speech.live_telling import Ledger, Teller
from worker.speech.live_turns import Turn
from worker.speech.live_utterance import Heard, Utterance

TEXT = " go forward ten meters and then turn back to me"


class Talk:
    """Channels that are told of as a test says."""

    def __init__(self, num_channels: int, first_id: int = 0, max_alternatives: int = 0) -> None:
        self.ledger = Ledger(first_id, is_begun=first_id > 0, num_channels=num_channels)
        options = replace(ENGLISH, max_alternatives=max_alternatives)
        self._tellers = [Teller(self.ledger, place, options, TOKENIZER.decode) for place in range(num_channels)]
        self._utterances = [Utterance(Turn(0, 0, 16_000)) for _ in range(num_channels)]

    @property
    def segments(self) -> list[SpeechSegment]:
        return [event for event in self.ledger.events if isinstance(event, SpeechSegment)]

    @property
    def text(self) -> str:
        return "".join(segment.stable_text for segment in self.segments if segment.is_final)

    def interim(self, channel: int, text: str) -> None:
        self._hear(channel, window_text(text))
        self._tellers[channel].tell_interim(self._utterances[channel])

    def final(self, channel: int, window: WindowText | str) -> None:
        self._hear(channel, window_text(window) if isinstance(window, str) else window)
        utterance = self._utterances[channel]
        self._tellers[channel].tell_final(utterance, utterance.said(), ())
        self._utterances[channel] = Utterance(Turn(0, 0, 16_000))

    def _hear(self, channel: int, window: WindowText) -> None:
        pieces = pieces_of(TOKENIZER.split_words(window.tokens, "en"))
        has_text = bool(tokens_of(pieces))
        self._utterances[channel].hear(
            Heard(16_000, window, pieces, "en", 0.0, None, has_text, may_agree=True, may_be_final=True), agrees=True
        )


def assert_nothing_is_taken_back(segments: Sequence[SpeechSegment]) -> None:
    stable: dict[int, str] = {}
    for segment in segments:
        assert segment.stable_text.startswith(stable.get(segment.segment_id, ""))
        stable[segment.segment_id] = segment.stable_text
    numbers = list(dict.fromkeys(segment.segment_id for segment in segments))
    assert numbers == list(range(len(numbers)))


def test_finals_of_two_channels_join_whichever_comes_first() -> None:
    talk = Talk(2)
    talk.interim(0, TEXT)
    talk.interim(1, TEXT)
    talk.interim(1, TEXT)
    talk.final(1, TEXT)
    talk.final(0, TEXT)
    assert talk.text == f"{TEXT}{TEXT}".strip()
    assert_nothing_is_taken_back(talk.segments)


def test_what_proves_to_be_nothing_does_not_begin_the_text() -> None:
    talk = Talk(1)
    talk.interim(0, " so")
    talk.final(0, "")
    talk.interim(0, TEXT)
    talk.final(0, TEXT)
    assert talk.text == TEXT.strip()
    assert_nothing_is_taken_back(talk.segments)


def test_what_is_not_told_takes_no_number() -> None:
    talk = Talk(1)
    talk.interim(0, "")
    assert talk.ledger.next_id == 0
    talk.final(0, "")
    talk.final(0, TEXT)
    assert [segment.segment_id for segment in talk.segments] == [0]


@pytest.mark.parametrize("num_channels", [1, 2])
def test_a_stream_that_goes_on_joins_the_one_before(num_channels: int) -> None:
    talk = Talk(num_channels, first_id=7)
    talk.interim(0, TEXT)
    talk.final(0, TEXT)
    assert talk.text == TEXT


@pytest.mark.parametrize("num_channels", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_texts_join_and_stay_in_any_order_of_channels(num_channels: int, seed: int) -> None:
    draws, talk = random.Random(seed), Talk(num_channels)
    words = TEXT.split(" ")[1:]
    for _ in range(30):
        channel = draws.randrange(num_channels)
        text = "".join(f" {word}" for word in words[: draws.randrange(len(words) + 1)])
        if draws.random() < 0.3:
            talk.final(channel, text)
        else:
            talk.interim(channel, text)
    assert talk.text == talk.text.strip(), f"seed {seed}"
    assert set(talk.text.split(" ")) <= set(words), f"seed {seed}"
    assert_nothing_is_taken_back(talk.segments)


def test_other_texts_differ_from_the_text_and_from_each_other() -> None:
    said, other, third = TEXT.strip(), "go for ten meters", "no"
    alternatives = ((said, -0.4), (other, -0.5), (other, -0.6), (said, -0.7), (third, -0.8), ("on", -0.9))
    talk = Talk(1, max_alternatives=2)
    talk.final(0, replace(window_text(TEXT), alternatives=alternatives))
    assert talk.segments[0].alternatives == ((other, -0.5), (third, -0.8))
