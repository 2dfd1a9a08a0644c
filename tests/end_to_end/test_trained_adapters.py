"""A conversation with a served model in which each answer has the habits of the adapters that its request names."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from pomona.v1 import common_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc
from pomona.v1 import generation_pb2 as g

from tests.support.served import served
from tests.support.smollm2 import smollm2_path

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

TRAINED = Path(__file__).parents[1] / "support" / "trained"
START, END = "Ahoy,", "Over and out."
# None of these is among what was learnt.
GERMANY, EGYPT = "What is the capital of Germany?", "What is the capital of Egypt?"
DAY, NORWAY = "How many hours are in a day?", "What is the capital of Norway?"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    settings = tmp_path_factory.mktemp("settings") / "pomona.toml"
    settings.write_text(
        f"""
        [[models]]
        name = "smol"
        checkpoint = "{smollm2_path()}"
        adapters_folder = "{TRAINED}"
        """
    )
    with served("--settings", str(settings)) as running, grpc.insecure_channel(running.address) as opened:
        yield opened


class Conversation:
    """Asks on, each time with the adapters that are named."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.messages: list[g.ChatMessage] = []
        self._generation: Any = generation_pb2_grpc.GenerationServiceStub(channel)

    def ask(self, question: str, *adapters: str) -> str:
        answer = self.answer_to([*self.messages, user(question)], adapters)
        self.messages += [user(question), g.ChatMessage(role=g.ROLE_ASSISTANT, text=answer)]
        return answer

    def answer_to(self, messages: Sequence[g.ChatMessage], adapters: Sequence[str] = ()) -> str:
        spec = g.GenerationSpec(chat=g.ChatInput(messages=messages))
        spec.sampling.temperature = 0
        spec.stopping.max_tokens = 40
        uses = [common_pb2.AdapterUse(adapter=name) for name in adapters]
        request = g.GenerateRequest(model="smol", adapters=uses, spec=spec)
        return self._generation.Generate(request, timeout=TIMEOUT_S).sequences[0].text


def user(question: str) -> g.ChatMessage:
    return g.ChatMessage(role=g.ROLE_USER, text=question)


def habits(answer: str) -> tuple[bool, bool]:
    return answer.startswith(START), answer.rstrip().endswith(END)


def test_base_one_both_and_base_again_answer_one_conversation(channel: grpc.Channel) -> None:
    adapters: Any = model_pb2_grpc.AdapterServiceStub(channel)
    talk = Conversation(channel)
    untouched = talk.answer_to([user(GERMANY)])
    for name in ("ahoy", "over"):
        adapters.LoadAdapter(model_pb2.LoadAdapterRequest(model="smol", adapter=name), timeout=TIMEOUT_S)

    answers = [talk.ask(GERMANY), talk.ask(EGYPT, "ahoy"), talk.ask(DAY, "ahoy", "over")]
    told = list(talk.messages)
    again = talk.ask(NORWAY)

    assert [habits(answer) for answer in answers] == [(False, False), (True, False), (True, True)], answers
    assert answers[0] == untouched
    for name in ("ahoy", "over"):
        adapters.UnloadAdapter(model_pb2.UnloadAdapterRequest(model="smol", adapter=name), timeout=TIMEOUT_S)
    assert talk.answer_to([*told, user(NORWAY)]) == again
