"""What /metrics tells. Labels come from closed sets, never from ids or clients' words."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.states import Outcome, TrialState
from repositories.statistics import StatisticsRepository

__all__ = ["ApiMetrics"]

T = TypeVar("T")

_CACHE_SECONDS = 10.0
"""Scrapes come every 15 s or so from one or two Prometheus: counting oftener tells nothing new."""
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ApiMetrics:
    """The metrics of one API process, with what the database knows of the queue."""

    def __init__(self, engine: Engine) -> None:
        """engine: counted on at each scrape, but not oftener than every ten seconds."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sandmill_api_requests_total",
            "Requests by route template, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "sandmill_api_request_seconds",
            "Time to answer, streams excepted.",
            ["route", "method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_QueueCollector(engine))


class _QueueCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families: list[GaugeMetricFamily] = []

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Promise nothing, so that registering asks no database."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._lock:
            if time.monotonic() - self._read_at > _CACHE_SECONDS:
                self._families = list(self._read())
                self._read_at = time.monotonic()
            return iter(self._families)

    def _read(self) -> Iterator[GaugeMetricFamily]:
        queue = self._ask(StatisticsRepository.read_queue)
        yield _gauge("sandmill_database_up", "1 when the database answers in time.", float(queue is not None))
        if queue is None:
            return
        yield _gauge(
            "sandmill_queue_oldest_seconds",
            "Age of the trial that waits longest.",
            queue.oldest_queued_seconds,
        )
        yield _gauge("sandmill_workers_live", "Worker sessions with a lease.", queue.live_workers)
        states = GaugeMetricFamily("sandmill_trials_open", "Unfinished trials by state.", labels=["state"])
        for state in set(TrialState) - {TrialState.FINISHED}:
            states.add_metric([state], queue.open_by_state.get(state, 0))
        yield states
        # Apart from the rest: where it takes too long, only this family is left out.
        finished = self._ask(StatisticsRepository.read_outcomes)
        if finished is not None:
            outcomes = GaugeMetricFamily(
                "sandmill_trials_finished", "Finished trials by outcome.", labels=["outcome"]
            )
            for outcome in Outcome:
                outcomes.add_metric([outcome], finished.get(outcome, 0))
            yield outcomes

    def _ask(self, question: Callable[[StatisticsRepository], T]) -> T | None:
        try:
            with self._engine.begin() as connection:
                return question(StatisticsRepository(connection))
        except SQLAlchemyError:
            return None


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning)
    family.add_metric([], value)
    return family
