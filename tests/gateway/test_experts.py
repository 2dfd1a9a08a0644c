"""How experts are spelled, and what goes together."""

import pytest
from pomona.v1 import model_pb2

from gateway.experts import check_budget, experts_mode, experts_word
from models.experts.options import ExpertsMode
from worker.settings import EXPERTS


def test_every_mode_of_the_contract_has_a_word_that_a_worker_knows() -> None:
    words = [experts_word(number) for number in model_pb2.ExpertsMode.values()]
    assert words == [None, *(mode.value for mode in ExpertsMode), "auto"]
    assert set(words[1:]) == set(EXPERTS)


@pytest.mark.parametrize("mode", model_pb2.ExpertsMode.values())
def test_words_lead_back_to_their_modes(mode: model_pb2.ExpertsMode.ValueType) -> None:
    assert experts_mode(experts_word(mode)) == mode


def test_a_mode_of_a_newer_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="no mode that this server knows"):
        experts_word(9)


def test_a_budget_is_of_slabs() -> None:
    check_budget("slab")
    check_budget("auto")
    for word in ("resident", "mapped"):
        with pytest.raises(ValueError, match=f"bounds slabs, and the experts are {word}; it goes with slab and auto"):
            check_budget(word)
