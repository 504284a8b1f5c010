"""Limits of tenants: what operators set, and what of it makes sense. What each means: `docs/scheduling.md`."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from core.errors import ConflictError, NotFoundError
from repositories.tenant_admin import LIMIT_COLUMNS, TenantAdminRepository, TenantRow
from services.operators import OperatorService
from services.problems import InvalidFieldsError, Problem
from services.tenants import Operator, check_tenant_name

__all__ = ["TenantAdmin"]

_MAX_BIGINT = (1 << 63) - 1

_RANGES: Mapping[str, tuple[float, float, bool]] = {
    # (least, most, whole numbers only)
    "weight": (0.001, 1e6, False),
    "class": (0, 9, True),
    "max_running": (0, 1_000_000, True),
    "max_queued": (0, 100_000_000, True),
    "max_cpu_millicores": (0, _MAX_BIGINT, True),
    "max_memory_bytes": (0, _MAX_BIGINT, True),
    "max_gpu": (0, 1_000_000, True),
    "rate_per_second": (0.000_01, 1e6, False),
    "rate_burst": (1, 1_000_000, True),
    "budget_period_seconds": (60, 366 * 86_400, True),
    "budget_cpu_seconds": (0, _MAX_BIGINT, True),
    "guaranteed_share": (0.000_001, 1.0, False),
}
_REQUIRED = frozenset({"weight", "class", "max_running", "max_queued"})


class TenantAdmin:
    """Tenants for operators, inside the caller's transaction. Changes are recorded with the key that made them."""

    def __init__(self, connection: Connection, operator: Operator) -> None:
        """connection: the caller begins and commits."""
        self._repository = TenantAdminRepository(connection)
        self._operators = OperatorService(connection, operator)

    def page(self, *, after: str | None, limit: int) -> list[TenantRow]:
        """List tenants by name."""
        return self._repository.page(after=after, limit=limit)

    def get(self, name: str) -> TenantRow:
        """Look one up. Raises NotFoundError."""
        row = self._repository.find(name)
        if row is None:
            raise NotFoundError("tenant", name)
        return row

    def create(self, name: str, limits: Mapping[str, Any]) -> TenantRow:
        """Make a tenant. limits: as for `change`. Raises ConflictError when there is one, InvalidFieldsError."""
        if not self._repository.create(check_tenant_name(name)):
            raise ConflictError(f"there is a tenant {name} already", field="name")
        self._operators.record("create_tenant", f"tenant:{name}")
        return self.change(name, limits) if limits else self.get(name)

    def change(self, name: str, limits: Mapping[str, Any], *, version: int | None = None) -> TenantRow:
        """Set limits by column of `tenants`; None takes a limit away. Those not named stay as they are.

        version: of the tenant when the caller looked at it; None overwrites whatever it is now. What runs goes on
        when a limit is lowered. Raises NotFoundError, ConflictError for another version, InvalidFieldsError for
        values out of range or that contradict each other.
        """
        if not self._repository.lock(name):
            raise NotFoundError("tenant", name)
        now = self.get(name)
        if version is not None and version != now.version:
            raise ConflictError(
                f"the tenant was changed meanwhile: it is at version {now.version}", field="version"
            )
        after = {
            column: limits.get(column, getattr(now, "class_" if column == "class" else column))
            for column in LIMIT_COLUMNS
        }
        problems = [*_check_ranges(limits), *_check_together(after)]
        if not problems and limits.get("guaranteed_share") is not None:
            others = self._repository.guaranteed_to_others(name)
            if others + limits["guaranteed_share"] > 1.0 + 1e-6:
                left = max(0.0, 1.0 - others)
                problems.append(
                    Problem(
                        "guaranteed_share", f"other tenants have {others:g} of 1: at most {left:g} is left"
                    )
                )
        if problems:
            raise InvalidFieldsError(problems)
        if limits:
            self._repository.change(name, limits)
            self._operators.record("change_tenant", f"tenant:{name}", limits)
        return self.get(name)

    def pause(self, name: str, *, paused: bool) -> TenantRow:
        """Start nothing of the tenant until it is resumed; what runs goes on. Raises NotFoundError."""
        self.get(name)
        if self._repository.pause(name, paused=paused):
            self._operators.record("pause_tenant" if paused else "resume_tenant", f"tenant:{name}")
        return self.get(name)


def _check_ranges(limits: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for column, value in limits.items():
        least, most, whole = _RANGES[column]
        if value is None:
            if column in _REQUIRED:
                problems.append(Problem(column, "must be set"))
        elif not least <= value <= most or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            problems.append(Problem(column, f"must be {kind} from {least:g} to {most:g}"))
    return problems


def _check_together(limits: Mapping[str, Any]) -> list[Problem]:
    """Tell what no scheduler could keep, or what would silently mean nothing."""
    problems = []
    if limits["rate_burst"] is not None and limits["rate_per_second"] is None:
        problems.append(Problem("rate_burst", "is the size of a rate's bucket: set rate_per_second, too"))
    for one, other in (
        ("budget_period_seconds", "budget_cpu_seconds"),
        ("budget_cpu_seconds", "budget_period_seconds"),
    ):
        if limits[one] is not None and limits[other] is None:
            problems.append(Problem(one, f"a budget is seconds of CPU in a period: set {other}, too"))
    if limits["guaranteed_share"] is not None:
        nothing = [
            name for name in ("max_running", "max_cpu_millicores", "max_memory_bytes") if limits[name] == 0
        ]
        problems += [
            Problem("guaranteed_share", f"a share is guaranteed while {name} is 0: nothing could ever run")
            for name in nothing
        ]
    return problems
