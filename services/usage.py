"""What a tenant has used. Attempts that ended by the operator's fault are metered, but apart: nobody pays for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import Connection

from core.errors import InvalidRequestError
from repositories.usage import UsageRepository, UsageRow

__all__ = ["Usage", "UsageDays", "UsageTotal", "read_usage"]

MAX_DAYS = 366


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Sums over attempts; memory_peak_bytes is the largest of any."""

    attempts: int = 0
    attempt_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0
    log_bytes: int = 0
    artifact_bytes: int = 0

    def __add__(self, other: "UsageTotal | UsageRow") -> "UsageTotal":
        """Add two sums."""
        return UsageTotal(
            attempts=self.attempts + other.attempts,
            attempt_seconds=self.attempt_seconds + other.attempt_seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            memory_peak_bytes=max(self.memory_peak_bytes, other.memory_peak_bytes),
            log_bytes=self.log_bytes + other.log_bytes,
            artifact_bytes=self.artifact_bytes + other.artifact_bytes,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """task: what the tenant's own work took. infra: attempts lost or broken by the installation."""

    task: UsageTotal
    infra: UsageTotal


@dataclass(frozen=True, slots=True)
class UsageDays:
    """Usage from `since` on and before `until`, as a whole and by UTC day; days without any are left out."""

    since: date
    until: date
    total: Usage
    days: tuple[tuple[date, Usage], ...]


def read_usage(
    connection: Connection, tenant_id: int, *, since: date | None, until: date | None, today: date
) -> UsageDays:
    """Sum what a tenant has used.

    since, until: UTC days, the second one not included; by default the 30 days up to and with today. Raises
    InvalidRequestError for a range that is empty, too long or backwards.
    """
    until = until or (since + timedelta(days=30) if since else today + timedelta(days=1))
    since = since or until - timedelta(days=30)
    if since >= until:
        raise InvalidRequestError("must be after `from`", field="to")
    if (until - since).days > MAX_DAYS:
        raise InvalidRequestError(f"must be at most {MAX_DAYS} days after `from`", field="to")
    rows = UsageRepository(connection).read([tenant_id], since=since, until=until)
    days = sorted({row.day for row in rows})
    return UsageDays(
        since,
        until,
        _sum(rows),
        tuple((day, _sum(row for row in rows if row.day == day)) for day in days),
    )


def _sum(rows: Iterable[UsageRow]) -> Usage:
    sums = {"task": UsageTotal(), "infra": UsageTotal()}
    for row in rows:
        sums[row.kind] += row
    return Usage(**sums)
