"""Questions to running programs that show whether they work. Each answers within two seconds and does not raise."""

import contextlib
import http.client
from uuid import UUID

import psycopg

from launcher.ports import LOOPBACK

__all__ = ["DatabaseProbe", "answers_ok"]

_TIMEOUT_SECONDS = 1.0


def answers_ok(port: int, path: str, *, host: str = LOOPBACK) -> bool:
    """GET a path of a server of this machine and say whether the status is 200. Proxy settings do not matter."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class DatabaseProbe:
    """Looks in the database for the traces of a program, over one connection that is kept."""

    def __init__(self, database_url: str) -> None:
        """Connect on first use only."""
        self._url = database_url
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def has_scheduler(self) -> bool:
        """Whether a scheduler holds, or waits for, the leadership."""
        return self._finds(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            "sandmill-leader",
        )

    def has_worker(self, pid: int) -> bool:
        """Whether the worker with this process id holds a live session, so that trials are placed on it."""
        return self._finds(
            "SELECT 1 FROM worker_sessions WHERE pid = %s AND ended_at IS NULL AND lease_until > now()"
            " AND created_at > now() - interval '10 minutes'",
            pid,
        )

    def has_node(self, node_id: UUID) -> bool:
        """Whether the worker of this node holds a live session."""
        return self._finds(
            "SELECT 1 FROM worker_sessions WHERE node_id = %s AND ended_at IS NULL AND lease_until > now()",
            node_id,
        )

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._connection = None

    def _finds(self, query: str, value: object) -> bool:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, connect_timeout=2, autocommit=True)
            return self._connection.execute(query, (value,)).fetchone() is not None
        except psycopg.Error:
            self.close()
            return False
