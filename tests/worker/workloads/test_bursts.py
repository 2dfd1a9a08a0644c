"""What workloads cut while other processes wait for the device, and that nothing is computed otherwise for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.registry import LoadedModel
from models.step import NumericPath
from tests.support.tiny_embedders import write_embedder
from tests.worker.embedding import driving as encoding
from tests.worker.speech.driving import GREEDY, Sound, noise, segments
from tests.worker.speech.driving import Driven as DrivenSpeech
from tests.worker.speech.driving import request as speech_request
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request, tokens_of
from tests.worker.text_models import tiny
from worker.claim import Claim
from worker.pace import FIRST_BURST_TOKENS, Pace
from worker.speech.loaded import LoadedSpeech
from worker.text_settings import TextSettings
from worker.workloads.text import SHORT_TOKENS

BURST_S = 0.02
LONG_PROMPT = tuple(index % 256 for index in range(600))


def prompt_tokens(driven: Driven) -> list[int]:
    return [sum(chunk.row.num_tokens for chunk in plan.prefill) for plan in driven.plans if plan.prefill]


def test_prompts_are_cut_to_the_burst_and_say_the_same(loaded: LoadedModel):
    usual = Driven(loaded, TextSettings(prefill_chunk_tokens=256)).generate(request(prompt=LONG_PROMPT, max_tokens=5))
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=256))
    driven.burst_s = BURST_S
    assert tokens_of(driven.generate(request(prompt=LONG_PROMPT, max_tokens=5))) == tokens_of(usual)
    sizes = prompt_tokens(driven)
    assert sizes[0] == FIRST_BURST_TOKENS
    assert sum(sizes) == len(LONG_PROMPT)


def test_prompts_beside_running_rows_have_half_a_burst(loaded: LoadedModel):
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=256))
    driven.admit(request("a", max_tokens=200))
    driven.until(lambda: driven.state("a") == "decoding")
    driven.workload._pace = Pace(0.25)
    driven.workload._pace.note(5000, 1.0)
    driven.burst_s = BURST_S
    driven.admit(request("b", prompt=LONG_PROMPT, max_tokens=1))
    driven.tick_once()
    assert prompt_tokens(driven)[-1] == 50


def test_the_reference_path_keeps_its_cuts(tmp_path: Path):
    driven = Driven(tiny(tmp_path, path=NumericPath.REFERENCE))
    driven.burst_s = BURST_S
    driven.generate(request(prompt=LONG_PROMPT, max_tokens=1))
    assert prompt_tokens(driven) == [len(LONG_PROMPT) - 1, 1]


def test_running_rows_and_short_prompts_are_more_urgent_than_long_prompts(loaded: LoadedModel):
    driven = Driven(loaded)
    assert driven.workload.claim() is Claim.BULK
    driven.admit(request("long", prompt=LONG_PROMPT, max_tokens=50))
    assert driven.workload.claim() is Claim.BULK
    driven.admit(request("short", prompt=LONG_PROMPT[:SHORT_TOKENS], max_tokens=1))
    assert driven.workload.claim() is Claim.STEADY
    driven.until(lambda: "short" not in driven.jobs and driven.state("long") == "decoding")
    assert driven.workload.claim() is Claim.STEADY


def test_inputs_are_cut_to_the_burst_and_give_the_same(tmp_path: Path):
    loaded = encoding.load_encoder(write_embedder(tmp_path / "tiny"))
    settings = TextSettings(prefill_chunk_tokens=400, max_context_tokens=1000)
    inputs = [list(LONG_PROMPT[:500]), list(LONG_PROMPT[:90])]
    usual = encoding.Driven(loaded, settings).encode(encoding.asking("r", *inputs))
    driven = encoding.Driven(loaded, settings)
    driven.burst_s = BURST_S
    assert driven.encode(encoding.asking("r", *inputs)) == usual
    assert sum(piece.count for piece in driven.plans[0].pieces) == FIRST_BURST_TOKENS


def test_short_requests_for_vectors_are_more_urgent_than_long_ones(tmp_path: Path):
    driven = encoding.Driven(encoding.load_encoder(write_embedder(tmp_path / "tiny")))
    driven.admit(encoding.asking("long", list(LONG_PROMPT)))
    assert driven.workload.claim() is Claim.BULK
    driven.admit(encoding.asking("short", [1, 2, 3]))
    assert driven.workload.claim() is Claim.STEADY


def test_a_pass_of_the_encoder_is_a_burst_of_its_own_and_texts_are_the_same(speech: LoadedSpeech):
    clips = tuple((start / 2, start / 2 + 0.5) for start in range(6))
    wanted = speech_request(Sound.of(noise(3)), replace(GREEDY, conditions_on_previous=False, clips=clips))
    usual = DrivenSpeech(speech).transcribe(wanted)
    driven = DrivenSpeech(speech)
    driven.burst_s = BURST_S
    heard: list[int] = []
    session = speech.session
    hear, step = session.hear, session.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "hear", lambda mels: (heard.append(len(mels)), hear(mels))[1])
        patch.setattr(session, "step", lambda feeds: (heard.append(0), step(feeds))[1])
        wanted = speech_request(Sound.of(noise(3)), replace(GREEDY, conditions_on_previous=False, clips=clips))
        found = driven.transcribe(wanted)
    assert segments(found) == segments(usual)
    assert max(heard) == 1
    assert driven.workload.claim() is Claim.STEADY
