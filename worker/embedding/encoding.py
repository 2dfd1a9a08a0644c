"""One request inside the workload: how far its inputs are, and what was computed of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.checkpoint.pooling import PoolingMode
from models.embedding.vectors import Floats, NotFiniteError, Pool, TooLargeError
from worker.embedding.encoder import EncodePiece
from worker.embedding.request import EncodeRequest
from worker.embedding.turns import Piece
from worker.errors import InvalidField
from worker.events import Embedded, Scored, Timing, Usage
from worker.job import Job
from worker.phases import PhaseClock


class Encoding:
    """A request's state; belongs to the engine's thread, which alone changes it.

    Attributes:
        job: the request and its reader.
        clock: when it entered each phase.
    """

    def __init__(self, job: Job[EncodeRequest]) -> None:
        self.job = job
        self.clock = PhaseClock(submitted=job.submitted)
        self._pools: dict[int, Pool] = {}
        self._num_done = 0
        self._num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether all its inputs are done."""
        return self._num_done == len(self.job.request.inputs)

    @property
    def usage(self) -> Usage:
        """Tokens computed so far."""
        return Usage(self._num_tokens)

    def timing(self, now: float) -> Timing:
        """Return how long it waited and was computed; there is no first token."""
        return replace(self.clock.timing(now), time_to_first_token_us=0)

    def begin(self, piece: Piece) -> EncodePiece:
        """Return what is computed of a piece of one of its inputs."""
        ids = self.job.request.inputs[piece.index]
        if piece.start == 0:
            wish = self.job.request.wish
            self._pools[piece.index] = Pool(PoolingMode.LAST if wish is None else wish.mode, len(ids))
        wanted = self._pools[piece.index].needed(piece.start, piece.count)
        return EncodePiece(piece.slot, tuple(ids[piece.start : piece.start + piece.count]), piece.start, wanted)

    def take(self, piece: Piece, floats: Floats) -> Embedded | Scored | None:
        """Take what was computed of a piece; return what is to be told where its input is done.

        Raises:
            NotFiniteError: the model has computed no numbers.
            InvalidField: a value does not fit into the floats that are wanted.
        """
        self._num_tokens += piece.count
        pool = self._pools[piece.index]
        pool.add(floats)
        if not piece.is_last:
            return None
        del self._pools[piece.index]
        self._num_done += 1
        vectors = pool.vectors()
        wish = self.job.request.wish
        if wish is None:
            yes, no = (float(logit) for logit in vectors[0])
            if not np.isfinite(vectors).all():
                raise NotFiniteError
            return Scored(piece.index, yes, no)
        try:
            return Embedded(piece.index, len(vectors), wish.form.shaped(vectors))
        except TooLargeError:
            raise InvalidField(
                "options.vector_type", "a value is beyond half floats; normalize, or take float32"
            ) from None
