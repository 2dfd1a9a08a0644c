"""What observes the gateway, made from its settings: metrics and their page, traces, the event loop's lag."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from gateway.ending import UNOBSERVED, Ended, Observer
from gateway.followers import Begin
from gateway.lag import LoopLag
from gateway.metrics_server import MetricsServer
from gateway.model_status import ModelState
from gateway.settings import Settings
from gateway.spans import Spans, make_spans
from gateway.trace import NewTrace, continued_trace, told_trace
from gateway.watched import Watched

if TYPE_CHECKING:  # importing it takes 50 ms, which only who wants metrics is to wait for
    from gateway.metrics import Metrics
    from gateway.scrape import Scraper


class Observation:
    """The observers of one gateway. Lives on one event loop.

    Attributes:
        lag: of the event loop.
        observer: is told of every RPC.
        new_trace: gives the trace of each RPC.
        metrics_address: where metrics can be scraped, once that is so; empty where they cannot.
    """

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        """Make what the settings want; nothing listens or runs yet.

        Raises:
            SettingsError: traces are wanted and what writes them is not installed.
        """
        self._settings = settings
        self._log = log
        self.lag = LoopLag()
        self.metrics_address = ""
        self._metrics = _metrics() if settings.metrics.listen else None
        self._spans = make_spans(settings.tracing, log) if settings.tracing.endpoint else None
        self.observer: Observer = _observer(self._metrics, self._spans)
        ratio = settings.tracing.sample_ratio
        self.new_trace: NewTrace = partial(continued_trace, ratio=ratio) if self._spans is not None else told_trace
        self._scraper: Scraper | None = None
        self._server: MetricsServer | None = None

    def watch(self, watched: Watched) -> None:
        """Have scrapes tell of these parts too."""
        if self._metrics is None:
            return
        from gateway.scrape import Scraper  # noqa: PLC0415 - as above

        self.lag.tell(self._metrics.lagged)
        scraper = self._scraper = Scraper(self._metrics, watched)
        where = self._settings.metrics
        self._server = MetricsServer(where.host, where.port, scraper.text, self._log)

    def changed(self, model: str, old: ModelState, new: ModelState) -> None:
        """Take note of a model's change of state."""
        if self._metrics is not None:
            self._metrics.changed(model, old, new)
        if self._scraper is not None:
            self._scraper.add_up()

    def evicted(self, model: str) -> None:
        """Take note of a model that goes to make room for another."""
        if self._metrics is not None:
            self._metrics.evicted(model)

    async def start(self) -> None:
        """Listen for scrapes, where the settings want that.

        Raises:
            ListenError: the address is taken or not allowed.
        """
        if self._server is not None:
            self.metrics_address = await self._server.start()
            self._log.info("metrics can be scraped", address=self.metrics_address)

    def followers(self) -> dict[str, Begin]:
        """Return what is to run as long as the gateway does, by names."""
        adding: dict[str, Begin] = {"heartbeats": self._scraper.follow} if self._scraper is not None else {}
        return {"lag": self.lag.follow, **adding}

    async def close(self) -> None:
        """Listen no more, and write the last spans."""
        if self._server is not None:
            await self._server.close()
        if self._spans is not None:
            await self._spans.close()


def _metrics() -> Metrics:
    from gateway.metrics import Metrics  # noqa: PLC0415 - as above

    return Metrics()


class _Both:
    """Tells two observers."""

    def __init__(self, metrics: Metrics, spans: Spans) -> None:
        self._metrics = metrics
        self._spans = spans

    def ended(self, end: Ended) -> None:
        """Tell both."""
        self._metrics.ended(end)
        self._spans.ended(end)

    def pace(self, model: str) -> Callable[[], None]:
        """Return what counts messages; spans have none."""
        return self._metrics.pace(model)


def _observer(metrics: Metrics | None, spans: Spans | None) -> Observer:
    if metrics is not None and spans is not None:
        return _Both(metrics, spans)
    return metrics or spans or UNOBSERVED
