"""What of the catalogue the caller may see.

Permission comes before existence, so that no answer tells whether there is a model that is hidden from the caller.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.catalogue import Catalogue, CatalogueModel
from gateway.errors import ModelNotFound
from gateway.principal import caller


def seen(catalogue: Catalogue, name: str) -> CatalogueModel:
    """Return the model that the caller means by `name`.

    Raises:
        ModelForbidden: the caller may not use it, or could not if there were one.
        ModelNotFound: there is none; it lists those that the caller may use.
    """
    who = caller()
    try:
        model = catalogue.resolve(name)
    except ModelNotFound:
        who.check_model(name, ())
        raise ModelNotFound(name, tuple(one.name for one in all_seen(catalogue))) from None
    who.check_model(name, (model.name, *model.aliases))
    return model


def all_seen(catalogue: Catalogue) -> tuple[CatalogueModel, ...]:
    """Return the models that the caller may use, by name."""
    who = caller()
    return tuple(model for model in catalogue.models if who.may_use((model.name, *model.aliases)))


def is_seen(catalogue: Catalogue, name: str) -> bool:
    """Say whether the caller may use the model with this canonical name, which may be gone."""
    try:
        model = catalogue.resolve(name)
    except ModelNotFound:
        return caller().may_use((name,))
    return caller().may_use((model.name, *model.aliases))


def names_seen(catalogue: Catalogue, names: Iterable[str]) -> list[str]:
    """Return those of the canonical names that are of models which the caller may use."""
    return [name for name in names if is_seen(catalogue, name)]
