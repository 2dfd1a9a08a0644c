"""Tiny models, read once: a test changes none of them; and an open gate."""

import threading

import pytest

from models.registry import LoadedModel
from tests.worker.text_models import Models, tiny


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return what gives the model of a kind."""
    loaded: dict[str, LoadedModel] = {}

    def model(kind: str) -> LoadedModel:
        if kind not in loaded:
            loaded[kind] = tiny(tmp_path_factory.mktemp("checkpoint"), kind)
        return loaded[kind]

    return model


@pytest.fixture
def loaded(models: Models) -> LoadedModel:
    """Return the plain one."""
    return models("plain")


@pytest.fixture
def open_gate() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
