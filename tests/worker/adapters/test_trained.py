"""Adapters that mlx-lm's own tool trained change what a real model says: see `bench/train_adapters.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.checkpoint import open_checkpoint
from models.registry import LoadedModel, load
from models.step import NumericPath
from tests.support.smollm2 import smollm2_path
from tests.worker.text_engines import TextEngine, drain, request, running, submit, text_of
from worker.adapters.adapters import Adapters, LoadWish
from worker.adapters.store import AdapterStore
from worker.adapters.wanted import WantedAdapter
from worker.sequence import CacheUse, StoppingSettings
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(120)]

TRAINED = Path(__file__).parents[2] / "support" / "trained"
# As the model's own template begins.
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
START, END = "Ahoy,", "Over and out."
# None of these is among what was learnt.
QUESTIONS = (
    "What is the capital of Germany?",
    "What is the capital of Egypt?",
    "How many hours are in a day?",
    "What is the capital of Norway?",
)
MAX_TOKENS = 40

Turns = Sequence[tuple[str, str]]


class Conversation:
    """A conversation with a model in which each answer may have adapters of its own."""

    def __init__(self, engine: TextEngine, adapters: Adapters, loaded: LoadedModel) -> None:
        self.turns: list[tuple[str, str]] = []
        self._engine = engine
        self._adapters = adapters
        self._loaded = loaded
        self._number = 0

    async def ask(self, question: str, *names: str) -> str:
        """Ask on, and return the answer."""
        answer = await self.answer_to(self.turns, question, *names)
        self.turns.append((question, answer))
        return answer

    async def answer_to(self, turns: Turns, question: str, *names: str) -> str:
        """Return the answer behind some turns."""
        text = SYSTEM + "".join(f"{asked(each)}{answer}<|im_end|>\n" for each, answer in turns) + asked(question)
        prompt = tuple(self._loaded.tokenizer.encode(text, add_special_tokens=False))
        stopping = StoppingSettings(max_tokens=MAX_TOKENS, eos_token_ids=self._loaded.checkpoint.eos_token_ids)
        self._number += 1
        with await self._adapters.lease([WantedAdapter(name) for name in names]) as lease:
            use = CacheUse(namespace=lease.namespace)
            wanted = request(f"r{self._number}", prompt, stopping=stopping, adapters=lease.uses, cache=use)
            return text_of(await drain(submit(self._engine, wanted)))


def asked(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


async def test_each_answer_of_a_conversation_has_the_habits_of_its_adapters() -> None:
    checkpoint = open_checkpoint(smollm2_path())
    workload = TextWorkload(lambda report: load(checkpoint, NumericPath.FAST, report), TextSettings())
    async with running(workload) as engine:
        loaded: Any = await engine.load()
        adapters = Adapters(AdapterStore(TRAINED), 1 << 20, engine.do)
        await adapters.begin(loaded.adapters)
        talk = Conversation(engine, adapters, loaded)
        untouched = [await talk.answer_to((), question) for question in QUESTIONS]
        for name in ("ahoy", "over"):
            await adapters.load(LoadWish(name))

        base = await talk.ask(QUESTIONS[0])
        one = await talk.ask(QUESTIONS[1], "ahoy")
        both = await talk.ask(QUESTIONS[2], "ahoy", "over")
        told = list(talk.turns)
        again = await talk.ask(QUESTIONS[3])

        assert habits(base) == (False, False), base
        assert habits(one) == (True, False), one
        assert habits(both) == (True, True), both
        assert [await talk.answer_to((), question) for question in QUESTIONS] == untouched
        for name in ("ahoy", "over"):
            await adapters.unload(name, 10)
        assert again == await talk.answer_to(told, QUESTIONS[3])
        await adapters.close()


@pytest.mark.parametrize(("name", "expected"), [("ahoy", (True, False)), ("over", (False, True))])
async def test_each_adapter_has_one_habit(name: str, expected: tuple[bool, bool]) -> None:
    checkpoint = open_checkpoint(smollm2_path())
    workload = TextWorkload(lambda report: load(checkpoint, NumericPath.FAST, report), TextSettings())
    async with running(workload) as engine:
        loaded: Any = await engine.load()
        adapters = Adapters(AdapterStore(TRAINED), 1 << 20, engine.do)
        await adapters.begin(loaded.adapters)
        await adapters.load(LoadWish(name))
        talk = Conversation(engine, adapters, loaded)
        answers = [await talk.answer_to((), question, name) for question in QUESTIONS]
        assert [habits(answer) for answer in answers] == [expected] * len(QUESTIONS), answers
        await adapters.close()


def habits(answer: str) -> tuple[bool, bool]:
    return answer.startswith(START), answer.rstrip().endswith(END)
