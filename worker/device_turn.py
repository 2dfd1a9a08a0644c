"""Whether this worker takes turns on its device, and the turn that it takes."""

from collections.abc import Callable
from typing import Literal

import mlx.core as mx

from models.layers.device import device_name
from worker.turn import Alone, SharedTurn, Turn
from worker.turn_line import TURN_FD, Kind, Message, open_line


def device_turn(gpu_turns: Literal["auto", "on", "off"], allowance_s: Callable[[], float], fd: int = TURN_FD) -> Turn:
    """Return this worker's turn.

    Args:
        gpu_turns: where turns are taken: `auto` on a GPU, `on` everywhere, `off` nowhere.
        allowance_s: how much longer than usual the present step may take, in seconds; called on any thread.
        fd: where the line to the gateway is; anything else there is none.
    """
    line = None if gpu_turns == "off" else open_line(fd)
    if line is None:
        return Alone()
    if gpu_turns == "auto" and device_name() == "cpu":
        line.send(Message(Kind.LEAVE))
        line.close()
        return Alone()
    return SharedTurn(line, mx.synchronize, allowance_s=allowance_s)
