"""SQL that counts over all tenants, for operators."""

from dataclasses import dataclass

from repositories.base import SqlRepository

__all__ = ["QueueStatistics", "StatisticsRepository"]

_OPEN = "SELECT state, count(*) AS n FROM trials WHERE state <> 'finished' GROUP BY state"

_FINISHED = "SELECT outcome, count(*) AS n FROM trials WHERE state = 'finished' GROUP BY outcome"

_OLDEST = """
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(queued_at)), 0)::float8 AS seconds
FROM trials WHERE state = 'queued'
"""

_WORKERS = """
SELECT count(*) AS n FROM worker_sessions WHERE ended_at IS NULL AND lease_until > clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """What is under way, over all tenants."""

    open_by_state: dict[str, int]
    oldest_queued_seconds: float
    live_workers: int


class StatisticsRepository(SqlRepository):
    """Counts over all tenants. Each gives up after two seconds with the driver's error."""

    def read_queue(self) -> QueueStatistics:
        """Count what is under way: the cost follows the open trials only."""
        self._limit_time()
        oldest = self._row(_OLDEST) or {"seconds": 0.0}
        workers = self._row(_WORKERS) or {"n": 0}
        return QueueStatistics(
            open_by_state={row["state"]: row["n"] for row in self._rows(_OPEN)},
            oldest_queued_seconds=oldest["seconds"],
            live_workers=workers["n"],
        )

    def read_outcomes(self) -> dict[str, int]:
        """Count finished trials by outcome: a scan of them all."""
        self._limit_time()
        return {row["outcome"]: row["n"] for row in self._rows(_FINISHED)}

    def _limit_time(self) -> None:
        self._connection.exec_driver_sql("SET LOCAL statement_timeout = '2s'")
