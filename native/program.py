"""A computation that is recorded once and then runs as one operation.

MLX takes some microseconds for each operation of a graph, and gives all of them their memory before the first has run.
A program costs a fraction of that, and holds only what is still to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import native

if TYPE_CHECKING:
    import mlx.core as mx

# What the sizes of an array's dimensions are called; None: it has no name.
Dimensions = Sequence[str | None]


class Program:
    """What computes some arrays of others.

    Each operation between them must be one of `native.kernels` or `native.dense`. What does not hang on the inputs,
    such as weights, is kept as it is, and so is what hung on them and was evaluated before it was recorded. The results
    have the bits of the graph that was recorded, and what an operation writes in place it writes in each run.

    Args:
        inputs: whose numbers are not looked at.
        outputs: what was computed of them; they need not be evaluated, and are not.
        dimensions: for each input and then each output, what the sizes of its dimensions are called. Sizes of one name
            are equal, and may change from run to run; one without a name stays as it was recorded. What the operations
            demand of sizes they checked when they were recorded and check no more, so the names must say all of it.

    Raises:
        NotRecordable: another operation stands between inputs and outputs.
        OperandRejected: the dimensions do not fit, or an output is not computed of the inputs.
        NativeError: the extension is not there or cannot be imported.
    """

    def __init__(
        self, inputs: Sequence[mx.array], outputs: Sequence[mx.array], dimensions: Sequence[Dimensions]
    ) -> None:
        self._program = native.extension().Program(inputs, outputs, dimensions)

    def __call__(self, inputs: Sequence[mx.array]) -> list[mx.array]:
        """Compute the same of other inputs.

        Args:
            inputs: of the dtypes, and but for the sizes that have names the shapes, that were recorded.

        Returns:
            One array for each output, not evaluated.

        Raises:
            OperandRejected: an input is of another kind, or when they are evaluated lies in memory as no kernel reads.
        """
        return self._program(inputs)
