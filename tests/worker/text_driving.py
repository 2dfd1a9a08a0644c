"""A text workload that a test ticks by hand: no thread, no event loop, and a clock that only the test moves."""

from collections.abc import Callable
from dataclasses import replace

from models.layers.cache import Cache
from models.layers.paged_cache import PagedCache
from models.layers.row_cache import RowCache
from models.registry import LoadedModel
from tests.worker.ticking import MAX_BYTES, StalledError, Ticked
from worker.events import Event
from worker.job import RequestView
from worker.sequence import Constraint, TextRequest
from worker.text_settings import TextSettings
from worker.workloads.text import TextWorkload


class Driven(Ticked[TextRequest, TextWorkload]):
    """Ticks a workload and keeps what it tells.

    Args:
        loaded: the model; many workloads may share it.
        settings: of the workload.
        make: makes the workload.
        constrain: makes what restricts a request's sequences; None: nothing does.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: TextSettings | None = None,
        *,
        make: Callable[..., TextWorkload] = TextWorkload,
        constrain: Callable[[TextRequest], Constraint] | None = None,
    ) -> None:
        self._constrain = constrain
        super().__init__(lambda clock: make(lambda _: loaded, settings or TextSettings(), clock=clock))

    @property
    def cache(self) -> Cache:
        return self.workload._ready.cache

    @property
    def prefix_bytes(self) -> int:
        return self.workload._ready.prefixes.nbytes

    def admit(self, wanted: TextRequest, max_bytes: int = MAX_BYTES) -> None:
        if (constrain := self._constrain) is not None:
            wanted = replace(wanted, make_constraint=lambda: constrain(wanted))
        super().admit(wanted, max_bytes)

    def generate(self, wanted: TextRequest) -> list[Event]:
        """Run one request to its end."""
        self.admit(wanted)
        self.finish()
        return self.events[wanted.key]

    def read(self, key: str) -> None:
        """Take all that waits in a request's outbox."""
        if (job := self.jobs.get(key)) is None:
            return
        while job.outbox.waiting_bytes:
            taking = job.outbox.take()
            try:
                taking.send(None)  # there is something, so it does not wait
            except StopIteration:
                continue
            taking.close()
            raise StalledError("an outbox has bytes and no event")

    def view(self, key: str) -> RequestView:
        return self.workload.view(self.jobs[key])

    def state(self, key: str) -> str:
        return self.view(key).state

    def states(self) -> list[str]:
        return [self.state(key) for key in self.jobs]

    def assert_nothing_is_held(self) -> None:
        """Assert that ended requests hold nothing, and that the prefix cache lets go of what it holds."""
        counts = self.workload.counts()
        scheduler = self.workload._scheduler
        assert (counts.running, counts.queued, counts.used_cache_tokens) == (0, 0, 0)
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        cache, prefix_bytes = self.cache, self.prefix_bytes
        # A part counts what a window has left behind too.
        has_window = any(layer.window for layer in self.workload._ready.model.model.attention_layers)
        fits = cache.nbytes <= prefix_bytes if has_window else cache.nbytes == prefix_bytes
        assert fits, "ended requests hold blocks"
        assert promised(cache) == 0, "room is promised to nobody"
        self.workload.close()
        assert cache.nbytes == 0, "blocks are held after the end"


def promised(cache: Cache) -> int:
    """Return the room that is promised to slots and not taken."""
    if isinstance(cache, PagedCache):
        return sum(group.blocks.num_promised for group in cache.groups)
    assert isinstance(cache, RowCache)
    return sum(cache._promised)
