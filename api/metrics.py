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

from models.states import LIVE_ATTEMPT_STATES, Outcome, TrialState
from repositories.statistics import POOL_STATES, StatisticsRepository

__all__ = ["ApiMetrics"]

T = TypeVar("T")

_CACHE_SECONDS = 10.0
"""Scrapes come every 15 s or so from one or two Prometheus: counting oftener tells nothing new."""
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_CLAIM_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


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
        self.client_create_seconds = Histogram(
            "sandmill_client_create_seconds",
            "From a client's create to its sandbox being ready, as clients tell it.",
            ["outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.pool_claims = Counter(
            "sandmill_pool_claims_total",
            "Creates that a warm pool could answer: hit; dead (a member that did not answer, so another was taken); "
            "miss (none was free: started anew); exhausted (429).",
            ["result"],
            registry=self.registry,
        )
        self.pool_claim_seconds = Histogram(
            "sandmill_pool_claim_seconds",
            "From a create to the answer with a sandbox of a pool that runs already.",
            buckets=_CLAIM_BUCKETS,
            registry=self.registry,
        )
        for result in ("hit", "dead", "miss", "exhausted"):
            self.pool_claims.labels(result)
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
        yield _gauge("sandmill_slots_free", "Slots of nodes that take work now.", queue.free_slots)
        yield _gauge(
            "sandmill_attempts_overdue",
            "Attempts that no worker claimed in time and nobody has taken back yet.",
            queue.overdue_attempts,
        )
        yield _gauge(
            "sandmill_sandboxes_leaked",
            "Sandboxes still noted as there two minutes after their attempt ended. Must be 0.",
            queue.leaked_sandboxes,
        )
        yield _gauge(
            "sandmill_dead_letters", "Trials given up and not looked at by anybody.", queue.dead_letters
        )
        yield _gauge("sandmill_webhooks_due", "Messages that should be sent now.", queue.due_deliveries)
        yield _gauge(
            "sandmill_webhooks_overdue_seconds",
            "How long the oldest of them waits to be sent.",
            queue.delivery_overdue_seconds,
        )
        yield _gauge(
            "sandmill_database_oldest_transaction_seconds",
            "Age of the oldest transaction: while it lasts, dead rows stay and the queue gets slower.",
            queue.oldest_transaction_seconds,
        )
        attempts = GaugeMetricFamily(
            "sandmill_attempts_live", "Attempts under way by state.", labels=["state"]
        )
        for live in LIVE_ATTEMPT_STATES:
            attempts.add_metric([live], queue.attempts_by_state.get(live, 0))
        yield attempts
        members = GaugeMetricFamily(
            "sandmill_pool_members", "Sandboxes of warm pools by state.", labels=["state"]
        )
        for state in POOL_STATES:
            members.add_metric([state], queue.pool_members_by_state.get(state, 0))
        yield members
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
