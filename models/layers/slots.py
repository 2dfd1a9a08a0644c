"""What every cache knows of its slots: how many tokens each holds, and which step it has open."""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import CommitError, PlanError
from models.layers.cache import Step
from models.step import RowPlan, StepPlan


@dataclass(slots=True)
class SlotState:
    """What every cache knows of a slot.

    Attributes:
        index: its number.
        length: committed tokens.
        open_step: the step that has not been committed.
        open_tokens: how many tokens it adds.
    """

    index: int
    length: int = 0
    open_step: Step | None = None
    open_tokens: int = 0

    def check(self, row: RowPlan) -> None:
        """Raise `PlanError` where a row cannot be its next."""
        if self.open_step is not None:
            raise PlanError(self.index, "a step is open")
        if row.start != self.length:
            raise PlanError(self.index, f"the step starts at {row.start} and the slot holds {self.length} tokens")
        if row.num_tokens == 0:
            raise PlanError(self.index, "the step has no tokens")
        if any(not 0 <= offset < row.num_tokens for offset in row.logits_at):
            raise PlanError(self.index, "logits are asked for outside the step")

    def open(self, step: Step, num_tokens: int) -> None:
        """Note the step that adds tokens."""
        self.open_step, self.open_tokens = step, num_tokens

    def close(self, accepted: int) -> int:
        """Commit the open step and return how many of its tokens were not accepted.

        Raises:
            CommitError: no step is open, or it has fewer tokens.
        """
        if self.open_step is None:
            raise CommitError(self.index, "no step is open")
        if not 0 <= accepted <= self.open_tokens:
            raise CommitError(self.index, f"{accepted} tokens of a step of {self.open_tokens} are accepted")
        self.length += accepted
        self.open_step = None
        return self.open_tokens - accepted


class SlotStates:
    """The states of a cache's slots, and how a step is checked against them.

    Args:
        num_slots: how many.
    """

    def __init__(self, num_slots: int) -> None:
        self._states = [SlotState(index) for index in range(num_slots)]

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: int) -> SlotState:
        """Return the state of a slot; raises `PlanError` where there is none."""
        if not 0 <= index < len(self._states):
            raise PlanError(index, f"there are {len(self._states)} slots")
        return self._states[index]

    def check(self, plan: StepPlan) -> None:
        """Raise `PlanError` where a plan has no rows, two for one slot, or one that cannot be its slot's next."""
        if not plan.rows:
            raise PlanError(-1, "the step has no rows")
        if len({row.slot for row in plan.rows}) < len(plan.rows):
            raise PlanError(-1, "the step has two rows for one slot")
        for row in plan.rows:
            self[row.slot].check(row)

    def open(self, step: Step) -> None:
        """Note the step that its rows' slots have open from now on."""
        for row in step.plan.rows:
            self._states[row.slot].open(step, row.num_tokens)

    def check_open(self, slot: int, step: Step) -> None:
        """Raise `PlanError` where a step is not the one that a slot has open."""
        if self._states[slot].open_step is not step:
            raise PlanError(slot, "the step is no longer open")

    def start(self, slot: int, num_tokens: int) -> None:
        """Let an empty slot hold tokens that it has not computed; raises `PlanError` where it is not empty."""
        state = self[slot]
        if state.length or state.open_step is not None:
            raise PlanError(slot, "a slot that is not empty cannot adopt")
        state.length = num_tokens

    def clear(self, slot: int) -> None:
        """Let a slot be empty."""
        state = self[slot]
        state.length, state.open_step = 0, None
