"""SQL of the monthly partitions: made ahead, dropped whole.

A month is a range of ids: the first 48 bits of a UUIDv7 are the time it was made (RFC 9562). So the key of a table can
be what it always was, and a look-up by id goes to one partition.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from models.retention import PARTITIONED
from repositories.base import SqlRepository

__all__ = ["Month", "Partition", "PartitionRepository"]

_NAME = re.compile(r"_p(\d{4})(\d{2})$")

_LIST = """
SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = %(table)s::regclass ORDER BY c.relname
"""

_NOW = "SELECT clock_timestamp() AS now"

# While one waits for a lock on the whole table, everybody else waits behind it.
_SHORT_LOCKS = "SET LOCAL lock_timeout = '2s'"

_HAS_TRIALS = "SELECT 1 FROM trials WHERE id >= %(low)s AND id < %(high)s LIMIT 1"

_NEEDS_LOGS = """
SELECT 1 FROM trials
WHERE id >= %(low)s AND id < %(high)s
  AND (state <> 'finished' OR finished_at > clock_timestamp() - make_interval(secs => %(seconds)s)) LIMIT 1
"""

# What a reader finds then: a log that has ended, all of it cut.
_EMPTY_LOGS = """
UPDATE log_heads SET next_seq = 0, truncated_bytes = truncated_bytes + bytes, bytes = 0
WHERE trial_id < %(high)s AND next_seq > 0
"""


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """One calendar month, UTC."""

    year: int
    month: int

    @classmethod
    def of(cls, moment: datetime) -> "Month":
        """Give the month of a moment."""
        at = moment.astimezone(UTC)
        return cls(at.year, at.month)

    def plus(self, months: int) -> "Month":
        """Give a later month, or an earlier one."""
        number = self.year * 12 + self.month - 1 + months
        return Month(number // 12, number % 12 + 1)

    @property
    def start(self) -> datetime:
        """Its first moment."""
        return datetime(self.year, self.month, 1, tzinfo=UTC)

    @property
    def first_id(self) -> UUID:
        """The least id that can be made in it."""
        return UUID(int=int(self.start.timestamp() * 1000) << 80)


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one month; the oldest partition of a table also has those of all months before."""

    table: str
    month: Month

    @property
    def name(self) -> str:
        """Name of its table."""
        return f"{self.table}_p{self.month.year:04}{self.month.month:02}"


class PartitionRepository(SqlRepository):
    """Partitions of the tables in `models.retention.PARTITIONED`."""

    def now(self) -> datetime:
        """The database's time."""
        row = self._row(_NOW)
        if row is None:
            message = "the database gave no time"
            raise LookupError(message)
        now: datetime = row["now"]
        return now

    def all_of(self, table: str) -> list[Partition]:
        """Those there are, oldest first, without the default one."""
        found = (_NAME.search(row["name"]) for row in self._rows(_LIST, {"table": table}))
        return [Partition(table, Month(int(m[1]), int(m[2]))) for m in found if m is not None]

    def make(self, partition: Partition) -> None:
        """Add a month that is not there, with those of its rows that came before it."""
        self._count(_SHORT_LOCKS)
        table, name, key = partition.table, partition.name, PARTITIONED[partition.table]
        low, high = partition.month.first_id, partition.month.plus(1).first_id
        self._count(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE)")
        # Rows of a month without partition lie in the default one, and would forbid the new one.
        self._count(
            f"WITH moved AS (DELETE FROM {table}_default WHERE {key} >= %(low)s AND {key} < %(high)s RETURNING *)"
            f" INSERT INTO {name} SELECT * FROM moved",
            {"low": low, "high": high},
        )
        self._count(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')")

    def drop(self, partition: Partition) -> None:
        """Remove a month with all its rows."""
        self._count(_SHORT_LOCKS)
        self._count(f"DROP TABLE {partition.name}")

    def has_trials(self, before: Month, since: Month | None) -> bool:
        """Say whether any trial made in these months is still in `trials`. since None: from the beginning."""
        return self._row(_HAS_TRIALS, _range(before, since)) is not None

    def needs_logs(self, before: Month, since: Month | None, *, days: float) -> bool:
        """Say whether a trial made in these months is unfinished, or has been finished for less than so long."""
        return self._row(_NEEDS_LOGS, {**_range(before, since), "seconds": days * 86400}) is not None

    def empty_logs(self, before: Month) -> None:
        """Note of logs of trials made before this month that nothing is left of them."""
        self._count(_EMPTY_LOGS, {"high": before.first_id})


def _range(before: Month, since: Month | None) -> dict[str, UUID]:
    return {"low": UUID(int=0) if since is None else since.first_id, "high": before.first_id}
