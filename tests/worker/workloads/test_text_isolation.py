"""Whatever else runs, a request says what it says alone."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.blocks import BLOCK_TOKENS
from models.registry import LoadedModel
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request, tokens_of
from tests.worker.text_mixes import Mix, NotAloneError, has_ended, outputs
from tests.worker.text_models import Models
from worker.events import Completed, FinishReason, Usage
from worker.job import Job, Reporter
from worker.restriction import Restriction
from worker.row import Row
from worker.sequence import SamplingSettings, Sequence, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

SEEDS = st.integers(0, 2**32)
MIXES = [
    ("plain", 200),
    ("window", 200),
    pytest.param("8", 200, marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
    pytest.param("turbo", 50, marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
    ("rows", 20),
]


@pytest.mark.parametrize(("kind", "num_mixes"), MIXES)
def test_every_row_of_a_random_mix_says_what_it_says_alone(models: Models, kind: str, num_mixes: int):
    loaded = models(kind)

    @settings(max_examples=num_mixes)
    @given(SEEDS)
    def check(seed: int) -> None:
        Mix(seed, loaded).check()

    check()


def test_the_mixes_have_what_they_are_for(models: Models):
    seen: Counter[str] = Counter()
    for seed in range(60):
        mix = Mix(seed, models("plain"))
        driven = mix.run()
        counts = driven.workload.counts()
        seen["accepted"] += counts.accepted_draft_tokens_total
        seen["rejected"] += counts.drafted_tokens_total - counts.accepted_draft_tokens_total
        seen["cached"] += counts.cached_prompt_tokens_total
        seen["evicted"] += counts.evictions_total
        seen["cut off"] += sum(not has_ended(events) for events in driven.events.values())
        seen["mixed ticks"] += sum(bool(plan.decode and plan.prefill) for plan in driven.plans)
        seen["wide steps"] += sum(len(plan.decode) > 2 for plan in driven.plans)
        for events in driven.events.values():
            ended = events[-1] if has_ended(events) else None
            seen["failed"] += ended is not None and not isinstance(ended, Completed)
            seen["forced"] += isinstance(ended, Completed) and ended.usage.forced_tokens
            for _, _, finished in outputs(events).values():
                seen["whole"] += finished is not None and finished.reason is FinishReason.CONSTRAINT_COMPLETE
                seen["stop string"] += finished is not None and finished.stop_string is not None
                seen["stop id"] += finished is not None and finished.stop_token_id is not None
    assert all(seen.values()), seen


# Defects, each of which some mix must show.


class SharesOneSampler(TextWorkload):
    def admit(self, job: Job[TextRequest]) -> None:
        super().admit(job)
        for row in self._groups[job.request.key].rows:
            self._only = getattr(self, "_only", None) or row.sampler
            row.__dict__["sampler"] = self._only


class SwapsTwoRows(TextWorkload):
    def _go_on(self, rows: list[Row], reporter: Reporter[TextRequest], *, is_built: bool) -> None:
        super()._go_on(rows, reporter, is_built=is_built)
        if len(rows) > 1 and not any(row.drafts for row in rows):
            rows[0]._place, rows[1]._place = rows[1]._place, rows[0]._place


class AcceptsEveryGuess(TextWorkload):
    def _read(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        settle = row._settle
        row._settle = lambda num_tokens: settle(max(num_tokens, 1 + len(row.drafts)))
        return super()._read(row, reporter)


class BeginsBehindAnothersPrompt(TextWorkload):
    def _start(self, sequence: Sequence) -> bool:
        has_started = super()._start(sequence)
        cache, slot = self._ready.cache, sequence.slot or 0
        others = [other for other in range(cache.num_slots) if cache.length(other) >= sequence.prefilled]
        if has_started and sequence.prefilled and (parts := cache.share(others[0])):
            cache.release(slot)
            cache.adopt(slot, parts[: sequence.prefilled // BLOCK_TOKENS])
            for part in parts:
                part.drop()
        return has_started


class ForgetsWhatItShared(TextWorkload):
    def drop(self, key: str) -> Usage:
        self._groups[key].shared.clear()
        return super().drop(key)


class TellsItsSamplerOfDrawsAlone(TextWorkload):
    def _read(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        if not row.is_forced:
            return super()._read(row, reporter)
        add, row.sampler.add = row.sampler.add, lambda token_id: None
        goes_on = super()._read(row, reporter)
        row.sampler.add = add
        return goes_on


class AllowsAnythingBehindForcedTokens(TextWorkload):
    def _read(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        is_forced = row.is_forced
        goes_on = super()._read(row, reporter)
        row.restriction = Restriction() if is_forced else row.restriction
        return goes_on


class ComputesTheLastForcedTokenAlone(TextWorkload):
    def _go_on(self, rows: list[Row], reporter: Reporter[TextRequest], *, is_built: bool) -> None:
        for row in rows:
            last = row.pending()[-1:]
            row.pending = lambda last=last: last
        super()._go_on(rows, reporter, is_built=is_built)


class CountsWhatComesPastTheEnd(TextWorkload):
    def _read(self, row: Row, reporter: Reporter[TextRequest]) -> bool:
        num_forced = len(row.restriction.forced) if row.restriction is not None else 0
        num_before = len(row.sequence.output_ids)
        goes_on = super()._read(row, reporter)
        if num_forced:
            self._stats.completion_tokens_total += num_forced - (len(row.sequence.output_ids) - num_before)
        return goes_on


@pytest.mark.parametrize(
    "defective",
    [
        SharesOneSampler,
        SwapsTwoRows,
        AcceptsEveryGuess,
        BeginsBehindAnothersPrompt,
        ForgetsWhatItShared,
        TellsItsSamplerOfDrawsAlone,
        AllowsAnythingBehindForcedTokens,
        ComputesTheLastForcedTokenAlone,
        CountsWhatComesPastTheEnd,
    ],
)
def test_the_mixes_catch_a_defect(models: Models, defective: type[TextWorkload]):
    def check_all() -> None:
        for seed in range(100):
            Mix(seed, models("plain"), defective).check()

    with pytest.raises(NotAloneError, match=r"seed \d+"):
        check_all()


# Two rows, of which one has processors (reported of mlx-lm as 1472).

PLAIN = request("plain", "seventeen tokens!", max_tokens=12, token_details=True)
OTHERS = {
    "penalty": SamplingSettings(temperature=0.0, repetition_penalty=1.1),
    "bias": SamplingSettings(temperature=0.0, logit_bias={65: 99.0}),
    "presence": SamplingSettings(temperature=0.0, presence_penalty=1000.0, penalty_window=0),
}


def other(name: str) -> TextRequest:
    return request(name, "another prompt", max_tokens=20, token_details=True, sampling=OTHERS[name])


def alone(loaded: LoadedModel, wanted: TextRequest) -> list[int]:
    return tokens_of(Driven(loaded).generate(wanted))


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_with_processors_joins_one_that_is_still_in_its_prompt(models: Models, name: str):
    loaded = models("plain")
    driven = Driven(loaded, TextSettings(prefill_chunk_tokens=4))
    driven.admit(PLAIN)
    driven.tick_once()
    assert driven.state("plain") == "prefilling"
    driven.admit(other(name))
    driven.finish()
    assert tokens_of(driven.events["plain"]) == alone(loaded, PLAIN)
    assert tokens_of(driven.events[name]) == alone(loaded, other(name))


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_with_processors_starts_after_one_without_has_ended(models: Models, name: str):
    loaded = models("plain")
    driven = Driven(loaded)
    driven.generate(PLAIN)
    assert tokens_of(driven.generate(other(name))) == alone(loaded, other(name))


def test_rows_with_different_processors_go_on_when_one_without_ends(models: Models):
    loaded = models("plain")
    driven = Driven(loaded)
    for wanted in (PLAIN, other("penalty"), other("bias"), other("presence")):
        driven.admit(wanted)
    driven.until(lambda: has_ended(driven.events["plain"]))
    assert driven.states() == ["decoding"] * 3
    driven.finish()
    for wanted in (PLAIN, other("penalty"), other("bias"), other("presence")):
        assert tokens_of(driven.events[wanted.key]) == alone(loaded, wanted)
    assert tokens_of(driven.events["bias"]) == [65] * 20
    assert len(set(tokens_of(driven.events["presence"]))) == 20
