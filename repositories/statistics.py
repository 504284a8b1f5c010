"""SQL that counts over all tenants, for operators."""

from dataclasses import dataclass

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository
from repositories.nodes import TAKES_WORK

__all__ = ["POOL_STATES", "QueueStatistics", "StatisticsRepository"]

_OPEN = "SELECT state, count(*) AS n FROM trials WHERE state <> 'finished' GROUP BY state"

_FINISHED = "SELECT outcome, count(*) AS n FROM trials WHERE state = 'finished' GROUP BY outcome"

_OLDEST = """
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(queued_at)), 0)::float8 AS seconds
FROM trials WHERE state = 'queued'
"""

_WORKERS = """
SELECT count(*) AS n FROM worker_sessions WHERE ended_at IS NULL AND lease_until > clock_timestamp()
"""

_ATTEMPTS = f"""
SELECT state, count(*) AS n, count(*) FILTER (
  WHERE state = 'dispatched' AND start_deadline < clock_timestamp() - interval '5 seconds') AS overdue
FROM attempts WHERE state IN ({sql_list(LIVE_ATTEMPT_STATES)}) GROUP BY state
"""

_FREE = f"""
SELECT coalesce(sum(greatest(n.slots - coalesce(u.n, 0), 0)), 0)::bigint AS n
FROM nodes n LEFT JOIN (
  SELECT node_id, sum(slots) AS n FROM attempts WHERE state IN ({sql_list(LIVE_ATTEMPT_STATES)}) GROUP BY node_id
) u ON u.node_id = n.id
WHERE {TAKES_WORK}
"""

# Of an attempt that has ended a while ago nothing may be left; the worker sweeps what would not go at first.
_LEAKED = """
SELECT count(*) AS n FROM sandboxes b JOIN attempts a ON a.trial_id = b.trial_id AND a.fence = b.fence
WHERE b.state <> 'removed' AND a.finished_at < clock_timestamp() - interval '2 minutes'
"""

_DEAD_LETTERS = "SELECT count(*) AS n FROM dead_letters WHERE replayed_at IS NULL AND discarded_at IS NULL"

_DELIVERIES = """
SELECT count(*) AS n,
       coalesce(extract(epoch FROM clock_timestamp() - min(next_try_at)), 0)::float8 AS overdue_seconds
FROM webhook_deliveries WHERE state = 'pending' AND next_try_at <= clock_timestamp()
"""

# An old snapshot keeps vacuum from dead rows, and then every look at the queue walks over them.
_SNAPSHOT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS seconds
FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
"""


POOL_STATES = ("free", "starting", "allocated", "ending")

_POOL_MEMBERS = """
SELECT CASE WHEN NOT is_warm THEN 'allocated' WHEN state = 'Running' THEN 'free' WHEN state = 'Pending' THEN 'starting'
            ELSE 'ending' END AS state, count(*) AS n
FROM sandbox_sessions WHERE pool_id IS NOT NULL AND ended_at IS NULL GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """What is under way, over all tenants."""

    open_by_state: dict[str, int]
    oldest_queued_seconds: float
    live_workers: int
    free_slots: int
    attempts_by_state: dict[str, int]
    overdue_attempts: int
    leaked_sandboxes: int
    dead_letters: int
    due_deliveries: int
    delivery_overdue_seconds: float
    oldest_transaction_seconds: float
    pool_members_by_state: dict[str, int]


class StatisticsRepository(SqlRepository):
    """Counts over all tenants. Each gives up after two seconds with the driver's error."""

    def read_queue(self) -> QueueStatistics:
        """Count what is under way: the cost follows the open trials only."""
        self._limit_time()
        oldest = self._row(_OLDEST) or {"seconds": 0.0}
        workers = self._row(_WORKERS) or {"n": 0}
        attempts = self._rows(_ATTEMPTS)
        deliveries = self._row(_DELIVERIES) or {"n": 0, "overdue_seconds": 0.0}
        return QueueStatistics(
            open_by_state={row["state"]: row["n"] for row in self._rows(_OPEN)},
            oldest_queued_seconds=oldest["seconds"],
            live_workers=workers["n"],
            free_slots=self._number(_FREE),
            attempts_by_state={row["state"]: row["n"] for row in attempts},
            overdue_attempts=sum(row["overdue"] for row in attempts),
            leaked_sandboxes=self._number(_LEAKED),
            dead_letters=self._number(_DEAD_LETTERS),
            due_deliveries=deliveries["n"],
            delivery_overdue_seconds=max(0.0, deliveries["overdue_seconds"]),
            oldest_transaction_seconds=(self._row(_SNAPSHOT) or {"seconds": 0.0})["seconds"],
            pool_members_by_state={row["state"]: row["n"] for row in self._rows(_POOL_MEMBERS)},
        )

    def read_outcomes(self) -> dict[str, int]:
        """Count finished trials by outcome: a scan of them all."""
        self._limit_time()
        return {row["outcome"]: row["n"] for row in self._rows(_FINISHED)}

    def _number(self, sql: str) -> int:
        row = self._row(sql)
        return 0 if row is None else int(row["n"])

    def _limit_time(self) -> None:
        self._connection.exec_driver_sql("SET LOCAL statement_timeout = '2s'")
