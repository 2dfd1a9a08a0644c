"""Constraints decide which tokens may come, and work while the device does."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from models.registry import LoadedModel, LoadProgress
from tests.worker.constraining import Anything, spells
from tests.worker.text_driving import Driven
from tests.worker.text_engines import finish_of, generate, request, running, tiny_loader, tokens_of
from tests.worker.text_mixes import outputs
from worker.batch import Batch
from worker.events import TextDelta
from worker.sequence import SamplingSettings, StoppingSettings
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload


def ids(loaded: LoadedModel, text: str) -> list[int]:
    """Return the one-byte tokens of a text."""
    by_bytes = {loaded.tokenizer.token_bytes(token_id): token_id for token_id in range(256)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_a_constraint_decides_each_token(loaded: LoadedModel, device: str):
    spelled = ids(loaded, "Ab0")
    driven = Driven(replace(loaded, device=device), constrain=lambda _: spells(spelled))
    events = driven.generate(request(max_tokens=3, token_details=True, sampling=SamplingSettings(seed=8)))
    assert tokens_of(events) == spelled


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_each_row_has_its_own_and_one_without_is_free(loaded: LoadedModel, device: str):
    words = {"a": ids(loaded, "first word"), "b": ids(loaded, "the second")}
    driven = Driven(
        replace(loaded, device=device),
        constrain=lambda wanted: spells(words[wanted.key]) if wanted.key in words else Anything(),
    )
    for key in ("free", "a", "b"):
        driven.admit(request(key, max_tokens=10, token_details=True))
    driven.finish()
    assert {key: tokens_of(driven.events[key]) for key in words} == words
    free = request("free", max_tokens=10, token_details=True)
    assert tokens_of(driven.events["free"]) == tokens_of(Driven(loaded).generate(free))


# Stop strings over text that a constraint spells (reported of smg as 2203 and of llama.cpp as 11543).


def spoken(loaded: LoadedModel, text: str, stopping: StoppingSettings) -> tuple[list[str], str | None]:
    """Return the deltas of a text that comes in tokens of one character, and the stop string that ended it."""
    driven = Driven(loaded, constrain=lambda _: spells(ids(loaded, text)))
    events = driven.generate(request(stopping=stopping))
    (output,) = outputs(events).values()
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(deltas) == output[1]
    return deltas, finish_of(events).stop_string


def test_text_that_shares_prefixes_with_a_stop_word_is_sent_as_soon_as_it_is_none(loaded: LoadedModel):
    text = "O P Q OPQ O"
    deltas, stop = spoken(loaded, text, StoppingSettings(len(text), stop_strings=(" OPQRSTUVWXY",)))
    assert deltas == ["O", " P", " Q", " OPQ", " O"]
    assert stop is None


def test_nothing_of_a_stop_word_is_sent(loaded: LoadedModel):
    deltas, stop = spoken(loaded, "42</answer>!!!and", StoppingSettings(99, stop_strings=("</answer>!!!",)))
    assert ("".join(deltas), stop) == ("42", "</answer>!!!")


def test_a_stop_word_is_sent_on_request(loaded: LoadedModel):
    stopping = StoppingSettings(99, stop_strings=("</answer>!!!",), include_stop_in_output=True)
    deltas, stop = spoken(loaded, "42</answer>!!!and", stopping)
    assert ("".join(deltas), stop) == ("42</answer>!!!", "</answer>!!!")


def test_held_text_is_sent_where_the_output_ends(loaded: LoadedModel):
    deltas, stop = spoken(loaded, "42</answer>!", StoppingSettings(12, stop_strings=("</answer>!!!",)))
    assert ("".join(deltas), stop) == ("42</answer>!", None)


def test_a_stop_word_before_the_least_number_of_tokens_is_text(loaded: LoadedModel):
    stopping = StoppingSettings(99, min_tokens=4, stop_strings=("ab",))
    deltas, stop = spoken(loaded, "abcabd", stopping)
    assert ("".join(deltas), stop) == ("abc", "ab")


# When a constraint works.


class SlowConstraint(Anything):
    """Notes its calls, and waits in `skip` until the next forward was started."""

    def __init__(self, notes: list[str], started: threading.Event) -> None:
        self._notes = notes
        self._started = started

    def skip(self) -> tuple[int, ...]:
        if self._notes:
            overlaps = self._started.wait(5)
            self._notes.append("skip while the device works" if overlaps else "skip before the device works")
            self._started.clear()
        return ()

    def mask(self) -> None:
        self._notes.append("mask")


@pytest.mark.parametrize("device", ["cpu", "metal"])
async def test_constraints_work_while_the_device_computes_the_next_forward(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
):
    notes: list[str] = []
    started = threading.Event()
    start = Batch.start

    def noted_start(batch: Batch) -> None:
        for forward in batch._forwards:  # none behind the last token
            notes.append(f"start {forward.rows[0].sequence.position - 7}")
            started.set()
        start(batch)

    load_model = tiny_loader(tmp_path)

    def load_for(report: Callable[[LoadProgress], None]) -> LoadedModel:
        return replace(load_model(report), device=device)

    wanted = request(max_tokens=3, token_details=True)
    async with running(TextWorkload(load_for, TextSettings())) as engine:
        expected = tokens_of(await generate(engine, wanted))
    monkeypatch.setattr(Batch, "start", noted_start)
    async with running(TextWorkload(load_for, TextSettings())) as engine:
        slow = replace(wanted, make_constraint=lambda: SlowConstraint(notes, started))
        assert tokens_of(await generate(engine, slow)) == expected
    first = 1 if device == "cpu" else 0  # there the token is read, and so counted, before the start
    turn = ["skip while the device works", "mask"]
    assert notes == ["mask", f"start {first}", *turn, f"start {first + 1}", *turn]
