from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from core.database import count_rows, fetch_rows

__all__ = ["SqlRepository"]


class SqlRepository:
    """Plain SQL over one connection, inside the caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        """connection: the caller begins and commits."""
        self._connection = connection

    def _rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        return fetch_rows(self._connection, sql, parameters or {})

    def _row(self, sql: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        rows = self._rows(sql, parameters)
        return rows[0] if rows else None

    def _count(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run a statement that changes rows; gives how many."""
        return count_rows(self._connection, sql, parameters or {})
