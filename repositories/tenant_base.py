from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from repositories.base import SqlRepository

__all__ = ["TenantSqlRepository"]


class TenantSqlRepository(SqlRepository):
    """Plain SQL that can touch one tenant's rows only: every statement gets `tenant_id` as a parameter."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant.

        connection: the caller begins and commits. tenant_id: from the API key, never from the request.
        """
        super().__init__(connection)
        self._tenant_id = tenant_id

    def _mine(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return self._rows(sql, {**(parameters or {}), "tenant_id": self._tenant_id})

    def _mine_or_none(self, sql: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        rows = self._mine(sql, parameters)
        return rows[0] if rows else None

    def _mine_count(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        return self._count(sql, {**(parameters or {}), "tenant_id": self._tenant_id})
