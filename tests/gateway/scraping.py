"""Reading metrics as Prometheus does."""

import asyncio
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 10.0


@dataclass(frozen=True)
class Page:
    """An answer of the page."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def metrics(self) -> dict[str, Metric]:
        """What is on it, by the names of the families."""
        return {family.name: family for family in text_string_to_metric_families(self.body)}

    def value(self, sample: str, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels, 0 where there is none."""
        return sum(
            one.value
            for family in self.metrics.values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        )


async def asked(address: str, request: bytes) -> bytes:
    """Send `request` and return all that comes back."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def get(address: str, path: str = "/metrics", method: str = "GET") -> Page:
    """Return the page."""
    answer = await asked(address, f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Page(int(first.split()[1]), headers, body)
