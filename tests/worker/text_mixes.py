"""Random mixes of requests on one model, and whether each row says what it says alone."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from models.registry import LoadedModel
from tests.worker.constraining import Choices
from tests.worker.text_driving import Driven
from tests.worker.text_engines import request
from worker.errors import ConstraintTooComplex
from worker.events import Completed, Event, Failed, SequenceFinished, Started, TextDelta, Usage, Waiting
from worker.prefixes import PrefixSettings
from worker.sequence import CacheUse, SamplingSettings, StoppingSettings, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

MAX_TICKS = 3000
LETTERS = range(97, 105)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "presence_penalty": 2.0, "penalty_window": 0},
    {"temperature": 0.0, "logit_bias": {66: 4.0, 67: 4.5, 200: -9.0}},
    {},
    {"temperature": 0.3},
    {"frequency_penalty": 1.5, "penalty_window": 7},
    {"logit_bias": {66: 4.0, 70: 3.0}},
    {"top_p": 0.8},
    {"top_k": 5},
    {"min_p": 0.2},
    {"top_p": 0.9, "top_k": 40, "min_p": 0.01, "temperature": 1.4},
    {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    # A few letters, over and over: stop strings match, and guesses are right.
    {"logit_bias": dict.fromkeys(LETTERS, 40.0)},
    {"temperature": 0.0, "logit_bias": dict.fromkeys(LETTERS, 40.0)},
)

Outputs = dict[int, tuple[list[int], str, SequenceFinished | None]]


class NotAloneError(AssertionError):
    """Raised with the seed that shows it."""


@dataclass
class Visit:
    """One request of a mix.

    Attributes:
        arrives: before this tick.
        leaves: is cancelled before this tick, if it still runs; None: it stays.
        reads_every: its reader takes what waits every so many ticks, and lets `max_bytes` wait.
    """

    wanted: TextRequest
    arrives: int
    leaves: int | None
    reads_every: int
    max_bytes: int


class Mix:
    """Requests come, run beside each other and go, as the seed decides.

    Args:
        seed: decides everything.
        loaded: the model.
        make: makes the workload of the mix; those in which rows are alone are always plain ones.
    """

    def __init__(
        self, seed: int, loaded: LoadedModel, make: Callable[..., TextWorkload] = TextWorkload, max_context: int = 256
    ) -> None:
        self.seed = seed
        dice = self.dice = random.Random(seed)
        self.loaded = loaded
        self.make = make
        self.base = [dice.randrange(256) for _ in range(110)]
        self.settings = TextSettings(
            max_batch_rows=dice.randint(1, 5),
            prefill_chunk_tokens=dice.choice([3, 16, 50, 512]),
            max_context_tokens=max_context,
            kv_bytes=dice.choice([None, None, 2 * max_context * loaded.token_bytes]),
            prefixes=PrefixSettings(max_bytes=dice.choice([0, 4, 40]) * 32 * loaded.token_bytes),
        )
        # Where starting returns at once, forwards are built on tokens that nobody has read.
        self.device = dice.choice(["cpu", "metal"])
        self.visits = [self.visit(str(number)) for number in range(dice.randint(2, 6))]
        self.cancelled: dict[str, Usage] = {}

    def visit(self, name: str) -> Visit:
        dice = self.dice
        arrives = dice.choice([0, dice.randrange(12)])
        return Visit(
            self.wanted(name),
            arrives=arrives,
            leaves=dice.choice([None, None, None, arrives + dice.randint(1, 20)]),
            reads_every=dice.choice([1, 1, 5]),
            max_bytes=dice.choice([1 << 20, 60]),
        )

    def wanted(self, name: str) -> TextRequest:
        dice = self.dice
        shared = self.base[: dice.choice([0, 0, 20, 40, 64, 70, 110])]
        prompt = (*shared, *(dice.randrange(256) for _ in range(dice.choice([1, 2, 9, 40]))))
        constraint, stopping = self.constraint(), self.stopping()
        if constraint is not None and stopping.min_tokens:
            # What may not end yet and nothing else is allowed leaves nothing to draw, and yet can be forced.
            stopping = replace(stopping, stop_token_ids=frozenset())
        return request(
            name,
            prompt,
            sampling=SamplingSettings(**dice.choice(SAMPLINGS), seed=dice.randrange(1 << 64)),
            stopping=stopping,
            make_constraint=constraint,
            waiting_events=dice.random() < 0.5,
            token_details=True,
            top_logprobs=dice.choice([None, None, None, 3]),
            num_sequences=dice.choice([1, 1, 1, 2, 3]),
            max_draft_tokens=dice.choice([0, 0, 4, 10]),
            cache=CacheUse(is_bypassed=dice.random() < 0.2, namespace=dice.choice(["", "", "other"])),
            priority=dice.choice([0, 0, 0, 9]),
        )

    def constraint(self) -> Callable[[], Choices] | None:
        dice = self.dice
        if dice.random() < 0.6:
            return None
        some = [[dice.choice(LETTERS)], dice.sample(LETTERS, 3), dice.sample(range(256), 20)]
        places = [dice.choice([some[0], *some]) for _ in range(dice.choice([0, 1, 4, 12]))]
        fails_at = dice.choice([None, None, None, dice.randrange(13)])
        return partial(Choices, places, is_whole=dice.random() < 0.4, fails_at=fails_at)

    def stopping(self) -> StoppingSettings:
        dice = self.dice
        letters = [chr(letter) for letter in LETTERS]
        max_tokens = dice.choice([1, 2, 6, 14])
        return StoppingSettings(
            max_tokens,
            min_tokens=dice.choice([0, 0, min(4, max_tokens)]),
            stop_strings=dice.choice([(), (), ("".join(dice.choices(letters, k=2)), dice.choice(letters))]),
            stop_token_ids=frozenset(dice.choice([(), (), dice.sample(range(256), 20)])),
            eos_token_ids=frozenset(dice.choice([(), self.loaded.checkpoint.eos_token_ids])),
            include_stop_in_output=dice.random() < 0.3,
        )

    def check(self) -> None:
        """Run the mix, then each request alone, and compare.

        Raises:
            NotAloneError: with the seed.
        """
        try:
            together = self.run()
            for visit in self.visits:
                compare(together.events[visit.wanted.key], self.alone(visit.wanted))
            self.check_counts(together)
            self.check_places(together)
            together.assert_nothing_is_held()
        except Exception as error:
            raise NotAloneError(f"seed {self.seed}: {error!r}") from error

    def run(self) -> Driven:
        driven = Driven(replace(self.loaded, device=self.device), self.settings, make=self.make)
        left = {visit.wanted.key for visit in self.visits}
        for tick in range(MAX_TICKS):
            for visit in self.visits:
                self.come_and_go(driven, visit, tick)
            driven.tick_once()
            check_slots(driven)
            left -= {key for key in left if has_ended(driven.events.get(key, []))}
            left -= {visit.wanted.key for visit in self.visits if visit.leaves == tick}
            if not left:
                return driven
        raise AssertionError(f"{left} never end")

    def come_and_go(self, driven: Driven, visit: Visit, tick: int) -> None:
        key = visit.wanted.key
        if tick == visit.arrives:
            driven.admit(visit.wanted, visit.max_bytes)
        if visit.leaves == tick and not has_ended(driven.events[key]):
            self.cancelled[key] = driven.cancel(key)
        if tick % visit.reads_every == 0:
            driven.read(key)

    def alone(self, wanted: TextRequest) -> list[Event]:
        """Run a request with nothing before or beside it, not even a sequence of its own, and draw each token alone."""
        settings = TextSettings(1, max_context_tokens=256, prefixes=PrefixSettings(max_bytes=0))
        if isinstance(make := wanted.make_constraint, partial):
            wanted = replace(wanted, make_constraint=partial(make, skips=False, fails_at=None))
        return Driven(self.loaded, settings).generate(replace(wanted, max_draft_tokens=0))

    def check_counts(self, driven: Driven) -> None:
        """Assert that the tokens that were counted are those that the callers are told of."""
        ends = [events[-1] for events in driven.events.values() if has_ended(events)]
        usages = [*self.cancelled.values(), *(end.usage for end in ends if isinstance(end, Completed | Failed))]
        counts = driven.workload.counts()
        assert counts.completion_tokens_total == sum(usage.completion_tokens for usage in usages)

    def check_places(self, driven: Driven) -> None:
        """Assert that readers are told of their place while they wait, and only if they asked."""
        for visit in self.visits:
            kinds = [type(event) for event in driven.events[visit.wanted.key]]
            first = kinds.index(Started) if Started in kinds else len(kinds)
            assert Waiting not in kinds[first:]
            assert visit.wanted.waiting_events or Waiting not in kinds


def has_ended(events: list[Event]) -> bool:
    return bool(events) and isinstance(events[-1], Completed | Failed)


def outputs(events: list[Event]) -> Outputs:
    """Return tokens with their details, text and end of each sequence."""
    found: Outputs = {}
    for event in events:
        if isinstance(event, TextDelta):
            tokens, text, finished = found.get(event.sequence_index, ([], "", None))
            found[event.sequence_index] = (
                [*tokens, *(token.id for token in event.tokens)],
                text + event.text,
                finished,
            )
        elif isinstance(event, SequenceFinished):
            tokens, text, _ = found.get(event.sequence_index, ([], "", None))
            found[event.sequence_index] = (tokens, text, event)
    return found


def compare(found: list[Event], alone: list[Event]) -> None:
    """Assert that what a request said among others is what it says alone, as far as it came."""
    expected = outputs(alone)
    for index, (tokens, text, finished) in outputs(found).items():
        wanted_tokens, wanted_text, wanted_end = expected[index]
        if finished is None:
            wanted_tokens, wanted_text = wanted_tokens[: len(tokens)], wanted_text[: len(text)]
        else:
            assert finished == wanted_end
        assert (tokens, text) == (wanted_tokens, wanted_text), f"sequence {index} of {len(expected)}"
    if has_ended(found) and isinstance(last := found[-1], Failed):
        assert isinstance(last.error, ConstraintTooComplex)
    elif has_ended(found):
        assert len(outputs(found)) == len(expected)
        last, wanted = found[-1], alone[-1]
        assert isinstance(last, Completed)
        assert isinstance(wanted, Completed)
        assert last.usage.completion_tokens == wanted.usage.completion_tokens


def check_slots(driven: Driven) -> None:
    groups = driven.workload._groups.values()
    slots = [row.sequence.slot for group in groups for row in group.rows if row.sequence.slot is not None]
    assert len(slots) == len(set(slots)), "two rows hold one slot"
    assert all(driven.cache.length(slot) == 0 for slot in range(driven.cache.num_slots) if slot not in slots)
