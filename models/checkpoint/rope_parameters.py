"""How a config states rotary positions, for each kind of attention.

Source: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` of transformers 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from models.checkpoint.dialects import FULL, SLIDING, RopeLayout
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.values import read_float, read_floats, read_object, read_optional_float, read_word
from models.checkpoint.yarn import Yarn, read_yarn

# One kind under two names.
LONG_KINDS = ("longrope", "su")
_DEFAULT_THETA = 10_000.0
# What each kind cannot do without.
_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary positions of one kind of attention.

    Attributes:
        theta: base of the wavelengths: pair i of D / 2 turns by theta^(-2i / D) radians a token.
        kind: `default`, `linear`, `dynamic`, `llama3`, `yarn`, `proportional`, `longrope`, or a word that this build
            does not run.
        partial_rotary_factor: share of a head's width that is turned, over 0 to 1.
        factor: how much longer the context is than in training.
        low_freq_factor: of `llama3`; None where nothing is said.
        high_freq_factor: the same.
        original_max_position_embeddings: context of training in tokens; None where nothing is said.
        max_position_embeddings: longest sequence in tokens; None where nothing is said.
        short_factor: of `longrope`: what divides each pair's turn within the original context.
        long_factor: the same beyond it.
        yarn: of `yarn`, else None.
        place: the key of the file that states them, for errors.
    """

    theta: float
    kind: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: float | None = None
    max_position_embeddings: float | None = field(default=None, compare=False)
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    yarn: Yarn | None = None
    place: str = field(default="rope_parameters", compare=False)

    def check_kind(self, kinds: tuple[str, ...], file: str) -> None:
        """Refuse a kind that an architecture does not run, or numbers that contradict each other.

        Raises:
            CheckpointRejected: naming the key.
        """
        if self.kind not in kinds:
            problem = f"the type {self.kind} is not one of {', '.join(kinds)}"
            raise CheckpointRejected(problem, file=file, key=f"{self.place}.rope_type")
        low, high = self.low_freq_factor, self.high_freq_factor
        if self.kind == "llama3" and low is not None and high is not None and high <= low:
            raise CheckpointRejected("is not over low_freq_factor", file=file, key=f"{self.place}.high_freq_factor")
        if self.kind == "dynamic":
            self._check_dynamic(file)

    def _check_dynamic(self, file: str) -> None:
        """Refuse one that would stretch within the longest sequence; beyond it nothing is served."""
        longest, original = self.max_position_embeddings, self.original_max_position_embeddings
        if longest is None:
            raise CheckpointRejected("is missing", file=file, key="max_position_embeddings")
        if original is not None and original < longest:
            key = f"{self.place}.original_max_position_embeddings"
            raise CheckpointRejected("is under max_position_embeddings, which is not computed", file=file, key=key)

    def as_scaling(self) -> dict[str, Any] | None:
        """Return the `rope_scaling` of transformers 4 that says the same; None of the default and of kinds of its own.

        Those are `proportional` and `longrope`, whose numbers stand in other keys too.
        """
        names = _NEEDED.get(self.kind)
        if names is None:
            return None
        found = {"rope_type": self.kind, **{name: getattr(self, name) for name in names}}
        if self.yarn is not None:
            own = {"beta_fast": self.yarn.fast_turns, "beta_slow": self.yarn.slow_turns}
            found |= {**own, "attention_factor": self.yarn.magnitude}
        return found


def read_rope(text: Mapping[str, Any], layout: RopeLayout, file: str) -> dict[str, RopeParameters]:
    """Read the rotary positions of each kind of attention; empty where a config states none.

    Args:
        text: keys of the text model, with its architecture's defaults.
        layout: where they stand.
        file: base name of the file, for errors.

    Raises:
        CheckpointRejected: naming the key.
    """
    block = read_object(text, "rope_parameters", file)
    if layout is RopeLayout.FLAT:
        return {FULL: _flat(text, block or {}, file)}
    entries = {
        kind: cast("Mapping[str, Any]", entry) for kind, entry in (block or {}).items() if isinstance(entry, dict)
    }
    if entries:
        return {kind: _parameters(entry, text, f"rope_parameters.{kind}", file) for kind, entry in entries.items()}
    if layout is RopeLayout.MAP:
        return {}
    return _spoken_for(text, block, layout, file)


def _flat(text: Mapping[str, Any], block: Mapping[str, Any], file: str) -> RopeParameters:
    partial = _partial(block, "rope_parameters", file)
    return RopeParameters(_theta(block, text, "rope_parameters", file), partial_rotary_factor=partial)


def _spoken_for(
    text: Mapping[str, Any], block: Mapping[str, Any] | None, layout: RopeLayout, file: str
) -> dict[str, RopeParameters]:
    place = "rope_scaling" if block is None else "rope_parameters"
    fields = read_object(text, place, file) or {}
    found = {FULL: _parameters(fields, text, place, file)}
    if layout is RopeLayout.LOCAL:
        theta = read_float(text, "rope_local_base_freq", file, default=_DEFAULT_THETA)
        found[SLIDING] = RopeParameters(theta, place="rope_local_base_freq")
    return found


def _parameters(fields: Mapping[str, Any], text: Mapping[str, Any], place: str, file: str) -> RopeParameters:
    named = {f"{place}.{name}": value for name, value in fields.items()}
    old_name = read_word(named, f"{place}.type", file, default="default")
    kind = read_word(named, f"{place}.rope_type", file, default=old_name)
    for name in _NEEDED.get(kind, ()):
        read_float(named, f"{place}.{name}", file)
    theta = _theta(fields, text, place, file)
    return RopeParameters(
        theta=theta,
        kind=kind,
        partial_rotary_factor=_partial(fields, place, file),
        factor=read_float(named, f"{place}.factor", file, default=1.0),
        low_freq_factor=read_optional_float(named, f"{place}.low_freq_factor", file),
        high_freq_factor=read_optional_float(named, f"{place}.high_freq_factor", file),
        original_max_position_embeddings=_original_tokens(named, text, place, file),
        max_position_embeddings=read_optional_float(text, "max_position_embeddings", file),
        short_factor=read_floats(named, f"{place}.short_factor", file),
        long_factor=read_floats(named, f"{place}.long_factor", file),
        yarn=read_yarn(named, theta, place, file) if kind == "yarn" else None,
        place=place,
    )


def _original_tokens(named: Mapping[str, Any], text: Mapping[str, Any], place: str, file: str) -> float | None:
    found = read_optional_float(named, f"{place}.original_max_position_embeddings", file)
    # Phi 3 states it beside the block.
    return read_optional_float(text, "original_max_position_embeddings", file) if found is None else found


def _theta(fields: Mapping[str, Any], text: Mapping[str, Any], place: str, file: str) -> float:
    key = f"{place}.rope_theta"
    if fields.get("rope_theta") is not None:
        return read_float({key: fields["rope_theta"]}, key, file)
    return read_float(text, "rope_theta", file, default=_DEFAULT_THETA)


def _partial(fields: Mapping[str, Any], place: str, file: str) -> float:
    key = f"{place}.partial_rotary_factor"
    return read_share({key: fields.get("partial_rotary_factor")}, key, file)


def read_share(config: Mapping[str, Any], key: str, file: str) -> float:
    """Return a share over 0 to 1, 1 where the key is absent or null; raises `CheckpointRejected` for anything else."""
    share = read_float(config, key, file, default=1.0)
    if share > 1:
        raise CheckpointRejected("is a share over 1", file=file, key=key)
    return share
