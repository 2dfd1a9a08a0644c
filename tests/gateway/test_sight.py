"""What of the catalogue a caller sees."""

from pathlib import Path

import pytest

from gateway.caller_errors import ModelForbidden
from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import ModelNotFound
from gateway.principal import ANYONE, NOBODY, Principal, acting_for
from gateway.sight import all_seen, is_seen, names_seen, seen
from tests.support.scripted_worker import no_description

KNOWN = Catalogue(
    [CatalogueModel("a", Path("/a"), ("alias-a",)), CatalogueModel("org/b", Path("/b"), ("shared",))], no_description
)


def one(*patterns: str) -> Principal:
    return Principal("ci", "ci", frozenset({"generate"}), patterns)


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (ANYONE, ["a", "org/b"]),
        (NOBODY, []),
        (one("a"), ["a"]),
        (one("alias-*"), ["a"]),
        (one("shared"), ["org/b"]),
        (one("org/*", "a"), ["a", "org/b"]),
        (one("c"), []),
    ],
)
def test_a_caller_sees_its_models(who: Principal, names: list[str]) -> None:
    with acting_for(who):
        assert [model.name for model in all_seen(KNOWN)] == names
        assert names_seen(KNOWN, ["a", "gone", "org/b"]) == [
            name for name in ("a", "gone", "org/b") if name in names or (name == "gone" and who is ANYONE)
        ]


def test_a_model_that_is_gone_is_known_by_its_name_alone() -> None:
    with acting_for(one("gone", "x*")):
        assert (is_seen(KNOWN, "gone"), is_seen(KNOWN, "gone-too")) == (True, False)


def test_a_name_means_a_model_or_tells_nothing() -> None:
    with acting_for(one("a", "mine*")):
        assert (seen(KNOWN, "a").name, seen(KNOWN, "alias-a").name) == ("a", "a")
        with pytest.raises(ModelNotFound) as missing:
            seen(KNOWN, "mine-not-there")
        assert missing.value.known == ("a",)
        for hidden in ("org/b", "shared", "not-there"):
            with pytest.raises(ModelForbidden):
                seen(KNOWN, hidden)
