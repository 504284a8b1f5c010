"""What operators may do to keys, nodes and named queues. Every change is recorded with the key that made it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ConflictError, InvalidRequestError, NotFoundError
from repositories.operators import (
    AdminEventRow,
    AdminKeyRow,
    LeaderRow,
    NodeRow,
    OperatorRepository,
    QueueRow,
)
from repositories.tenants import TenantRepository
from services import tenants
from services.tenants import Operator

__all__ = ["OperatorService"]

_QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class OperatorService:
    """One operator at work, inside the caller's transaction."""

    def __init__(self, connection: Connection, operator: Operator) -> None:
        """connection: the caller begins and commits; the record of a change is committed with it or not at all."""
        self._connection = connection
        self._operator = operator
        self._repository = OperatorRepository(connection)

    def record(self, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Keep what this operator does. detail: JSON values, never a secret."""
        self._repository.record(self._operator.key_id, action, subject, detail or {})

    def page_events(self, *, subject: str | None, before: int | None, limit: int) -> list[AdminEventRow]:
        """List changes, newest first, older than `before`."""
        return self._repository.events(subject=subject, before=before, limit=limit)

    def page_keys(self, tenant: str | None, *, before: UUID | None, limit: int) -> list[AdminKeyRow]:
        """List a tenant's keys, or operators' ones for None, newest first. Raises NotFoundError."""
        tenant_id = None if tenant is None else self.tenant_id(tenant)
        return self._repository.keys(tenant_id, before=before, limit=limit)

    def create_key(self, tenant: str | None, name: str) -> tuple[AdminKeyRow, str]:
        """Make a key of a tenant, or an operator's for None; gives it with its text. Raises NotFoundError."""
        if tenant is None:
            text = tenants.create_admin_key(self._connection, name)
        else:
            text = tenants.create_api_key(self._connection, self.tenant_id(tenant), name)
        key_id = self._repository.key_of_hash(tenants.hash_key(text))
        row = None if key_id is None else self._repository.key(key_id)
        if row is None:
            message = "a key vanished between two statements"
            raise LookupError(message)
        self.record("create_key", f"key:{row.id}", {"tenant": tenant, "name": name, "role": row.role})
        return row, text

    def revoke_key(self, key_id: UUID) -> AdminKeyRow:
        """End a key; again is no error. Raises NotFoundError, ConflictError for the key that asks."""
        row = self._repository.key(key_id)
        if row is None:
            raise NotFoundError("API key", key_id)
        if key_id == self._operator.key_id:
            raise ConflictError("this is the key of this very call: revoke it with another one")
        if self._repository.revoke(key_id):
            self.record("revoke_key", f"key:{key_id}", {"tenant": row.tenant})
        return self._repository.key(key_id) or row

    def page_nodes(self, *, after: UUID | None, limit: int) -> Sequence[NodeRow]:
        """List nodes by id."""
        return self._repository.nodes(after=after, limit=limit)

    def get_node(self, node_id: UUID) -> NodeRow:
        """Look one up. Raises NotFoundError."""
        found = self._repository.nodes(node_id=node_id)
        if not found:
            raise NotFoundError("node", node_id)
        return found[0]

    def cordon(self, node_id: UUID, *, drain: bool = False) -> NodeRow:
        """Give a node nothing new; drain: it gives back what runs, too. Again is no error. Raises NotFoundError."""
        if not self._repository.cordon(node_id, drain=drain):
            raise NotFoundError("node", node_id)
        self.record("drain" if drain else "cordon", f"node:{node_id}")
        return self.get_node(node_id)

    def uncordon(self, node_id: UUID) -> NodeRow:
        """Let a node take work again, drained or only cordoned. Raises NotFoundError."""
        if not self._repository.uncordon(node_id):
            raise NotFoundError("node", node_id)
        self.record("uncordon", f"node:{node_id}")
        return self.get_node(node_id)

    def page_queues(self, *, after: str | None, limit: int) -> Sequence[QueueRow]:
        """List the named queues that have a cap or were paused once; jobs may use any other name, too."""
        return self._repository.queues(after=after, limit=limit)

    def get_queue(self, name: str) -> QueueRow:
        """Look one up. Raises NotFoundError."""
        found = self._repository.queues(name=name)
        if not found:
            raise NotFoundError("queue", name)
        return found[0]

    def put_queue(self, name: str, *, max_running: int | None) -> QueueRow:
        """Set the cap of a queue over all tenants; None: no cap. Raises InvalidRequestError for a bad name."""
        _check_queue_name(name)
        self._repository.put_queue(name, max_running=max_running)
        self.record("put_queue", f"queue:{name}", {"max_running": max_running})
        return self.get_queue(name)

    def pause_queue(self, name: str, *, paused: bool) -> QueueRow:
        """Start nothing of a queue, or again. Raises NotFoundError for one that can only be resumed."""
        if paused and not self._repository.queues(name=name):
            _check_queue_name(name)
            self._repository.put_queue(name, max_running=None)
        if not self._repository.pause_queue(name, paused=paused):
            raise NotFoundError("queue", name)
        self.record("pause_queue" if paused else "resume_queue", f"queue:{name}")
        return self.get_queue(name)

    def leader(self) -> LeaderRow:
        """Look at the scheduler that leads. Raises NotFoundError when there never was one."""
        row = self._repository.leader()
        if row is None:
            raise NotFoundError("leader", "scheduler")
        return row

    def tenant_id(self, name: str) -> int:
        """Find a tenant by name. Raises NotFoundError."""
        found = TenantRepository(self._connection).find(name)
        if found is None:
            raise NotFoundError("tenant", name)
        return found


def _check_queue_name(name: str) -> None:
    if not _QUEUE_NAME.fullmatch(name):
        message = "a queue name has 1 to 63 characters of a-z 0-9 . _ - and starts with a letter or digit"
        raise InvalidRequestError(message, field="name")
