"""What a request asks for that leads its output: a constraint, tools, and how long the model may reason."""

from dataclasses import dataclass, field

from pomona.v1 import generation_pb2 as pb

from worker.abilities import Abilities
from worker.constraints.grammar import Grammar, read_constraint
from worker.errors import InvalidField, UnsupportedOption
from worker.tools import ToolUse

CONSTRAINT = "spec.constraint"
BUDGET = "spec.stopping.max_reasoning_tokens"


@dataclass(frozen=True, slots=True)
class Steering:
    """What a request asks for of it.

    Attributes:
        constraint: on the content; None: none.
        tools: that it may or must call.
        max_reasoning_tokens: after which reasoning is closed; None: any number.
    """

    constraint: Grammar | None = None
    tools: ToolUse = field(default_factory=ToolUse)
    max_reasoning_tokens: int | None = None

    @property
    def has_force(self) -> bool:
        """Whether tokens may come of it that are not drawn."""
        return self.constraint is not None or bool(self.tools.required) or self.max_reasoning_tokens is not None


def read_steering(spec: pb.GenerationSpec, tools: ToolUse, abilities: Abilities) -> Steering:
    """Check what leads the output of a request.

    Args:
        spec: of the request.
        tools: of its chat; none where it has none.
        abilities: of the model.

    Raises:
        ConstraintInvalid: the constraint is empty.
        ConstraintTooComplex: it is too large.
        InvalidField: it is together with what contradicts it.
        UnsupportedOption: the model does not reason apart.
    """
    has_budget = spec.stopping.HasField("max_reasoning_tokens")
    if has_budget and abilities.marks is None:
        raise UnsupportedOption(BUDGET, abilities.unavailable.get("reasoning", "the model does not reason apart"))
    constraint = read_constraint(spec.constraint, CONSTRAINT)
    if constraint is None and spec.HasField("constraint"):
        raise InvalidField(CONSTRAINT, "nothing is set in it")
    if constraint is not None and tools.offered:
        raise InvalidField(CONSTRAINT, "not together with tools; tool_choice NONE leaves them out")
    if spec.stopping.ignore_eos and (constraint is not None or tools.required):
        raise InvalidField("spec.stopping.ignore_eos", "what restricts the output decides where it may end")
    return Steering(constraint, tools, spec.stopping.max_reasoning_tokens if has_budget else None)
