"""Routes that say what the sandbox uses."""

import asyncio
import json
import time
from typing import Any, Final

from execd.accounting import Accounting
from execd.exchange import Exchange
from execd.router import RouteTable

__all__ = ["MetricRoutes", "Sampler"]

WATCH_SECONDS: Final = 1.0
_SHORTEST_SECONDS: Final = 0.1
"""Over less than ten clock ticks of the kernel a share of processor time says nothing."""

_MEBIBYTE: Final = 1024 * 1024
_STREAM_HEADERS: Final = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


class Sampler:
    """Takes samples; the share of the processors is that since the last sample, whoever asked for it."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self._taken = time.monotonic()
        self._cpu_seconds = accounting.cpu_seconds()
        self._share = 0.0

    def sample(self) -> dict[str, Any]:
        """Give a Metrics document: processors, 0 to 100 percent of them, MiB, milliseconds of Unix time."""
        accounting = self._accounting
        cpu_count = accounting.cpu_count()
        self._measure(cpu_count)
        return {
            "cpu_count": cpu_count,
            "cpu_used_pct": round(100 * self._share, 2),
            "mem_total_mib": round(accounting.memory_total() / _MEBIBYTE, 2),
            "mem_used_mib": round(accounting.memory_used() / _MEBIBYTE, 2),
            "timestamp": time.time_ns() // 1_000_000,
        }

    def _measure(self, cpu_count: float) -> None:
        now = time.monotonic()
        elapsed = now - self._taken
        if elapsed < _SHORTEST_SECONDS:
            return
        cpu_seconds = self._accounting.cpu_seconds()
        self._share = max(0.0, min(1.0, (cpu_seconds - self._cpu_seconds) / (elapsed * cpu_count)))
        self._taken, self._cpu_seconds = now, cpu_seconds


class MetricRoutes:
    """`/metrics`."""

    def __init__(self, accounting: Accounting) -> None:
        self._sampler = Sampler(accounting)

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {"/metrics": {"GET": self.get}, "/metrics/watch": {"GET": self.watch}}

    async def get(self, exchange: Exchange) -> None:
        """GET /metrics."""
        await exchange.reply_json(200, self._sampler.sample())

    async def watch(self, exchange: Exchange) -> None:
        """GET /metrics/watch; until the client goes."""
        await exchange.read_body()
        gone = asyncio.Event()
        exchange.on_disconnect(gone.set)
        await exchange.start(200, _STREAM_HEADERS, first=self._frame())
        while not gone.is_set():
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await gone.wait()
            except TimeoutError:
                await exchange.send(self._frame())

    def _frame(self) -> bytes:
        # The protocol's clients read lines here: one line end, not the two of an event stream.
        return json.dumps(self._sampler.sample(), separators=(",", ":")).encode("ascii") + b"\n"
