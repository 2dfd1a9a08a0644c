"""Live transcription by a script: what is told, when, and that it is never taken back."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.worker.speech.live_stage import ENGLISH, RATE_HZ, Said, Stage, speech, with_live
from worker.events import LanguageFound, SegmentEnd, SpeechSegment, VoiceChange
from worker.speech.fairness import Urgency
from worker.speech.live_hearing import LiveHearing

SENTENCE = "and mister john dashwood had then leisure to consider how much there might be"
FIRST, SECOND = speech(SENTENCE, 1.0), speech("he was not an ill disposed young man", 8.5)
WORDS = ("the", "cat", "sat", "on", "a", "mat", "thank", "you", "no")


def joined(stage: Stage) -> str:
    return "".join(stage.texts).strip()


def taken_back(segments: Sequence[SpeechSegment]) -> int:
    """Return how often an event does not begin with the stable text of the one before of its segment."""
    stable: dict[int, str] = {}
    count = 0
    for segment in segments:
        count += not segment.stable_text.startswith(stable.get(segment.segment_id, ""))
        stable[segment.segment_id] = segment.stable_text
    return count


def segments_of(stage: Stage) -> list[SpeechSegment]:
    return [event for _, event in stage.events if isinstance(event, SpeechSegment)]


def check_rules(stage: Stage) -> None:
    """Check what holds of every stream of segments."""
    segments = segments_of(stage)
    assert taken_back(segments) == 0
    ids = [segment.segment_id for segment in stage.finals]
    assert ids == sorted(set(ids))
    assert {segment.segment_id for segment in segments} == set(ids)
    for number in ids:
        own = [segment for segment in segments if segment.segment_id == number]
        assert [segment.is_final for segment in own] == [False] * (len(own) - 1) + [True]
        assert [segment.revision for segment in own] == list(range(len(own)))
        assert own[-1].unstable_text == ""
        assert own[-1].end is not None
    edges = [edge for segment in stage.finals for edge in (segment.start_s, segment.end_s)]
    assert edges == sorted(edges)
    assert all(0 <= edge <= stage.now_s for edge in edges)


def test_an_utterance_grows_and_is_final_as_soon_as_the_silence_was_as_long_as_asked() -> None:
    stage = Stage([*FIRST, *SECOND]).play(14).finish()
    check_rules(stage)
    assert stage.texts == [SENTENCE, " he was not an ill disposed young man"]
    ends = [word.end_s + 0.5 for word in (FIRST[-1], SECOND[-1])]
    told = [at for at, event in stage.events if isinstance(event, SpeechSegment) and event.is_final]
    assert [at - end <= 0.15 for at, end in zip(told, ends, strict=True)] == [True, True]
    assert [segment.end for segment in stage.finals] == [SegmentEnd.SILENCE] * 2
    assert [round(segment.start_s, 1) for segment in stage.finals] == [1.0, 8.5]


@pytest.mark.parametrize("cost_s", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("offset_s", [0.0, 0.03, 0.11, 0.17, 0.24, 0.31, 0.4])
def test_the_final_comes_in_time_wherever_the_speech_ends_between_two_interims(cost_s: float, offset_s: float) -> None:
    spoken = speech(SENTENCE, 1.0)
    spoken.append(Said(" prudently", spoken[-1].end_s, spoken[-1].end_s + 0.3 + offset_s))
    stage = Stage(spoken, cost_s=cost_s, step_s=0.02).play(9.5)
    told = [at for at, event in stage.events if isinstance(event, SpeechSegment) and event.is_final]
    assert len(told) == 1
    assert told[0] - spoken[-1].end_s <= 1.0


def test_nothing_is_heard_while_nobody_speaks() -> None:
    stage = Stage([]).play(30).finish()
    assert stage.heard == []
    assert segments_of(stage) == []


def test_without_interims_an_utterance_is_heard_once() -> None:
    stage = Stage([*FIRST, *SECOND], with_live(interim_results=False)).play(14).finish()
    assert stage.interims == []
    assert len(stage.heard) == 2
    assert stage.texts == [SENTENCE, " he was not an ill disposed young man"]


def test_interims_come_no_more_often_than_asked() -> None:
    stage = Stage(FIRST, with_live(interim_interval_s=1.5), cost_s=0.1).play(8).finish()
    told = [at for at, event in stage.events if isinstance(event, SpeechSegment) and not event.is_final]
    assert len(told) >= 3
    assert min(after - before for before, after in itertools.pairwise(told)) >= 1.5 - 1e-9


def test_a_slow_machine_hears_fewer_interims_and_loses_no_audio() -> None:
    quick, slow = (Stage([*FIRST, *SECOND], cost_s=cost_s).play(15).finish() for cost_s in (0.1, 2.0))
    check_rules(slow)
    assert slow.texts == quick.texts
    assert len(slow.interims) < len(quick.interims) / 3
    assert all(len(stage.heard) <= 15 / cost_s for stage, cost_s in ((quick, 0.1), (slow, 2.0)))
    assert max(progress.lag_s or 0 for progress in slow.progress) > 2.0


def test_audio_that_comes_all_at_once_has_finals_alone() -> None:
    stage = Stage([*FIRST, *SECOND], step_s=20.0).play(15).finish()
    check_rules(stage)
    assert stage.texts == [SENTENCE, " he was not an ill disposed young man"]
    assert len(stage.heard) <= 3


def test_the_lag_is_what_came_and_is_not_told_yet() -> None:
    stage = Stage(FIRST, cost_s=0.2).play(12)
    assert all(0 <= (progress.lag_s or 0) < 0.9 for progress in stage.progress)
    assert stage.progress[-1].lag_s is not None
    assert stage.progress[-1].lag_s < 0.05
    processed = [progress.processed_s for progress in stage.progress]
    assert processed == sorted(processed)


def test_the_caller_ends_an_utterance_and_what_follows_is_another() -> None:
    stage = Stage(speech(SENTENCE, 1.0)).play(3.1)
    stage.request.finalizations.add(stage.now_s)
    stage.play(5).finish()
    check_rules(stage)
    assert [segment.end for segment in stage.finals] == [SegmentEnd.CLIENT_FINALIZED, SegmentEnd.SILENCE]
    assert abs(stage.finals[0].end_s - 3.1) < 0.1
    assert stage.finals[1].start_s >= stage.finals[0].end_s


def test_a_finalization_waits_for_the_audio_before_it() -> None:
    stage = Stage(speech(SENTENCE, 1.0))
    stage.request.finalizations.add(3.0)
    stage.play(4).finish()
    assert abs(stage.finals[0].end_s - 3.0) < 0.15


def test_a_finalization_does_not_wait_for_what_a_resampler_holds_back() -> None:
    stage = Stage(speech(SENTENCE, 1.0)).play(3)
    stage.request.finalizations.add(stage.now_s + 0.1)
    stage.work()
    stage.work(is_hurried=True)
    assert [segment.end for segment in stage.finals] == [SegmentEnd.CLIENT_FINALIZED]


def test_finalizing_in_silence_ends_nothing() -> None:
    stage = Stage([]).play(2)
    stage.request.finalizations.add(stage.now_s)
    stage.play(2).finish()
    assert segments_of(stage) == []


def test_the_end_of_the_audio_ends_an_utterance() -> None:
    stage = Stage(FIRST).play(6.6).finish()
    check_rules(stage)
    assert stage.finals[-1].end is SegmentEnd.END_OF_AUDIO
    assert joined(stage) == SENTENCE


@pytest.mark.parametrize("num_samples", [8_000, 32_001, 32_255, 32_256, 32_511])
def test_there_is_no_more_speech_than_audio(num_samples: int) -> None:
    stage = Stage([Said(" aaaah", 0.0, 9.0)]).play(num_samples / RATE_HZ).finish()
    usage = stage.transcriber.usage()
    assert usage.audio_s == usage.speech_s == num_samples / RATE_HZ


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2])
def test_audio_that_is_no_utterance_has_no_segment(seconds: float) -> None:
    stage = Stage([Said(" x", 0.0, seconds)]).play(seconds).finish()
    assert segments_of(stage) == []
    assert stage.transcriber.usage().audio_s == pytest.approx(seconds)


@pytest.mark.parametrize("cost_s", [0.2, 0.7])
def test_speech_without_any_pause_is_cut_between_words_and_nothing_is_lost_or_doubled(cost_s: float) -> None:
    text = " ".join(f"{WORDS[place % 9]}{place}" for place in range(200))
    stage = Stage(speech(text, 1.0), cost_s=cost_s).play(82).finish()
    check_rules(stage)
    assert joined(stage) == text
    assert [segment.end for segment in stage.finals[:-1]] == [SegmentEnd.MAX_LENGTH] * (len(stage.finals) - 1)
    assert len(stage.finals) >= 4
    assert all(segment.end_s - segment.start_s < 30 for segment in stage.finals)


def test_speech_with_short_pauses_ends_in_one_of_them_before_it_is_too_long() -> None:
    script = [word for turn in range(12) for word in speech(f"so it goes on number {turn} then", 1 + 3.3 * turn, 0.42)]
    stage = Stage(script).play(45).finish()
    check_rules(stage)
    assert joined(stage) == " ".join(word.text.strip() for word in script)
    assert max(segment.end_s - segment.start_s for segment in stage.finals) < 20
    assert stage.finals[0].end is SegmentEnd.MAX_LENGTH


def test_more_stable_text_than_a_window_has_room_for_is_cut_before() -> None:
    text = " ".join(f"abcdefgh{place:08d}" for place in range(60))
    stage = Stage(speech(text, 1.0, 0.6)).play(40).finish()
    check_rules(stage)
    assert joined(stage) == text
    assert len(stage.finals) > 1


@pytest.mark.parametrize("seed", range(25))
def test_stable_text_is_never_taken_back_whatever_the_model_says(seed: int) -> None:
    draws = random.Random(seed)

    def hears(text: str, hearing: LiveHearing) -> str:
        words = [word if draws.random() < 0.8 else draws.choice(WORDS) for word in text.split()]
        words += ["thank", "you"] * (draws.randint(2, 9) if draws.random() < 0.2 else 0)
        return "".join(f" {word}" for word in words[: draws.randint(0, 60)])

    script = [word for turn in range(4) for word in speech(SENTENCE, 1 + draws.uniform(6.5, 7.5) * turn)]
    stage = Stage(script, cost_s=draws.uniform(0.05, 1.0), step_s=draws.choice([0.02, 0.1, 0.5]), hears=hears)
    stage.play(14)
    stage.request.finalizations.add(stage.now_s)
    stage.play(18).finish()
    check_rules(stage)
    assert stage.interims, f"seed {seed}"


def test_a_change_of_stable_text_would_be_seen() -> None:
    segment = SpeechSegment(0, 0, 1, " so it", is_final=False)
    assert taken_back([segment, replace(segment, stable_text=" so he")]) == 1


def test_a_loop_is_neither_told_nor_fed_back() -> None:
    def hears(text: str, hearing: LiveHearing) -> str:
        return text + " thank you" * 20

    conditioned = replace(ENGLISH, conditions_on_previous=True)
    stage = Stage([*FIRST, *SECOND], conditioned, hears=hears).play(14).finish()
    check_rules(stage)
    assert joined(stage).count("thank you") <= 2
    assert stage.texts[0].startswith("and mister john")
    for segment in segments_of(stage):
        assert (segment.stable_text + segment.unstable_text).count("thank you") <= 1


def test_a_window_that_is_silence_says_nothing_and_has_no_segment() -> None:
    facts = {"no_speech_prob": 0.95, "avg_logprob": -1.5}
    stage = Stage(FIRST, facts=facts).play(9).finish()
    assert stage.heard
    assert segments_of(stage) == []


def test_more_than_anybody_can_say_was_not_said() -> None:
    invented = "".join(f" thank{place} you{place}" for place in range(30))
    stage = Stage(speech("so it is", 1.0), hears=lambda *_: invented).play(5).finish()
    assert segments_of(stage) == []


def test_an_interim_that_fails_the_thresholds_is_not_told_but_the_final_is() -> None:
    stage = Stage(FIRST, facts={"is_accepted": False, "avg_logprob": -1.2}).play(9).finish()
    assert stage.interims[:-1] == []
    assert joined(stage) == SENTENCE


def test_an_utterance_whose_end_is_nothing_after_all_still_has_its_final() -> None:
    calls: list[int] = []

    def hears(text: str, hearing: LiveHearing) -> str:
        calls.append(1)
        return text if len(calls) < 6 else ""

    stage = Stage(FIRST, hears=hears).play(9).finish()
    check_rules(stage)
    assert len(stage.finals) == 1
    assert stage.finals[0].stable_text == stage.interims[-1].stable_text


def test_words_are_placed_in_finals_where_they_are_asked_for() -> None:
    stage = Stage([*FIRST, *SECOND], replace(ENGLISH, has_words=True, time_offset_s=100.0)).play(14).finish()
    check_words = [(word.text, round(word.start_s, 1), round(word.end_s, 1)) for word in stage.finals[0].words]
    assert check_words[:2] == [("and", 101.0, 101.4), (" mister", 101.4, 101.8)]
    assert ["".join(word.text for word in segment.words) for segment in stage.finals] == stage.texts
    assert all(segment.words == () for segment in stage.interims)
    assert 100.95 <= stage.finals[0].start_s <= 101.0


def test_words_of_an_utterance_that_is_cut_end_with_its_text() -> None:
    text = " ".join(f"{WORDS[place % 9]}{place}" for place in range(90))
    stage = Stage(speech(text, 1.0), replace(ENGLISH, has_words=True)).play(40).finish()
    assert ["".join(word.text for word in segment.words) for segment in stage.finals] == stage.texts
    times = [time for segment in stage.finals for word in segment.words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)


def test_a_reconnected_caller_goes_on_with_its_clock_and_its_ids() -> None:
    options = replace(with_live(voice_activity_events=True), time_offset_s=1000.0, first_segment_id=7)
    stage = Stage([*FIRST, *SECOND], options).play(14).finish()
    assert [segment.segment_id for segment in stage.finals] == [7, 8]
    assert [round(segment.start_s) for segment in stage.finals] == [1001, 1008]
    changes = [event for _, event in stage.events if isinstance(event, VoiceChange)]
    assert [change.is_speech for change in changes] == [True, False, True, False]
    assert [round(change.offset_s, 1) for change in changes] == [1001.0, 1006.6, 1008.5, 1011.7]


def test_nobody_is_told_of_voices_unasked() -> None:
    stage = Stage(FIRST).play(9).finish()
    assert not [event for _, event in stage.events if isinstance(event, VoiceChange)]


def test_the_language_is_found_once_and_told_once() -> None:
    options = replace(ENGLISH, languages=())
    stage = Stage([*FIRST, *SECOND], options, languages={"de": 0.6, "en": 0.3}).play(14).finish()
    found = [event for _, event in stage.events if isinstance(event, LanguageFound)]
    assert found == [LanguageFound("de", 0.6)]
    assert [segment.language for segment in stage.finals] == ["de", "de"]


def test_a_later_utterance_that_is_clearly_in_another_language_is_heard_in_that() -> None:
    stage = Stage([*FIRST, *SECOND], replace(ENGLISH, languages=("de", "en")), languages={"de": 0.9, "en": 0.1})
    stage.play(8)
    stage.languages = {"en": 0.9, "de": 0.1}
    stage.play(6).finish()
    assert [segment.language for segment in stage.finals] == ["de", "en"]


def test_silence_that_is_skipped_moves_the_clock_and_costs_nothing() -> None:
    stage = Stage([*FIRST]).play(9)
    stage.recording.skip(3600 * RATE_HZ)
    later_s = stage.now_s + 1
    stage.script += speech("he was not ill", later_s)
    stage.play(5).finish()
    check_rules(stage)
    assert joined(stage) == f"{SENTENCE} he was not ill"
    assert abs(stage.finals[1].start_s - later_s) < 0.05


def test_an_hour_of_talk_stays_flat_in_memory() -> None:
    script = [word for turn in range(600) for word in speech("he was not ill", 6.0 * turn + 1, 0.3)]
    stage = Stage(script, with_live(interim_interval_s=1.0), step_s=1.0)
    kept: list[int] = []
    for _ in range(60):
        stage.script = [word for word in script if stage.now_s - 60 < word.start_s < stage.now_s + 120]
        stage.play(60)
        kept.append(stage.recording.memory_bytes)
    stage.finish()
    assert len(stage.finals) == 600
    assert max(kept) < 10 * RATE_HZ * 4


@pytest.mark.parametrize(("conditions", "expected"), [(True, f" who is it {SENTENCE}"), (False, " who is it")])
def test_what_was_said_before_is_told_to_the_decoder_where_that_was_asked_for(conditions: bool, expected: str) -> None:
    stage = Stage([*FIRST, *SECOND], replace(ENGLISH, conditions_on_previous=conditions, initial_prompt="who is it"))
    stage.play(14).finish()
    assert stage.contexts[0] == " who is it"
    assert stage.contexts[-1] == expected


def test_texts_of_two_channels_join_and_none_is_stable_before_the_first_is_final() -> None:
    stage = Stage([*FIRST, *SECOND], num_channels=2).play(14).finish()
    assert taken_back(segments_of(stage)) == 0
    texts = [SENTENCE, "he was not an ill disposed young man"]
    assert joined(stage) == "".join(stage.texts) == " ".join([texts[0]] * 2 + [texts[1]] * 2)
    places = [segment.is_final for segment in segments_of(stage)]
    before = segments_of(stage)[: places.index(True)]
    assert {segment.channel for segment in before} == {0, 1}
    assert {segment.stable_text for segment in before} == {""}
    assert any(segment.stable_text for segment in stage.interims)


def test_noise_is_audio_too() -> None:
    stage = Stage([])
    stage.recording.append(np.random.default_rng(0).normal(0, 0.05, 5 * RATE_HZ).astype(np.float32))
    stage.work()
    assert segments_of(stage.finish()) == []


def test_a_hearing_is_as_urgent_as_the_utterance_is_near_its_end() -> None:
    urgencies: list[Urgency] = []

    def hears(text: str, hearing: LiveHearing) -> str:
        urgencies.append(hearing.urgency)
        return text

    stage = Stage(speech(SENTENCE, 1.0), cost_s=0.05, hears=hears).play(6.65)
    assert set(urgencies) == {Urgency.SPEAKING}
    stage.play(0.3)
    assert urgencies[-1] is Urgency.PAUSING
    late = Stage(speech(SENTENCE, 1.0), hears=hears)
    late.recording.append(late._sound_of(0, round(7.6 * RATE_HZ)))
    late.finish()
    assert urgencies[-1] is Urgency.OVER
