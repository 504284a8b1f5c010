"""Idempotency-Keys: the same request sent twice makes one thing."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from core.errors import ConflictError, IdempotencyConflictError
from repositories.idempotency import IdempotencyRepository

__all__ = ["IdempotencyService", "RequestIdentity", "hash_request"]

_KEEP_SECONDS = 7 * 86400.0


def hash_request(body: Any) -> bytes:
    """Hash what a body says, not how it was spelled: spaces and the order of keys do not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).digest()


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """A create with an Idempotency-Key. route: which create it is. request_hash: from `hash_request`."""

    key: str
    route: str
    request_hash: bytes


class IdempotencyService:
    """Keys of one tenant, inside the transaction that makes the thing."""

    def __init__(self, connection: Connection, tenant_id: int) -> None:
        """Bind to one tenant. connection: the caller commits key and thing together, or neither."""
        self._repository = IdempotencyRepository(connection, tenant_id)

    def claim(self, identity: RequestIdentity, resource_id: UUID) -> UUID | None:
        """Take the key for resource_id; gives None, or the id of what the same request made before.

        Waits while another transaction holds the key. Raises IdempotencyConflictError if it stands for another body.
        """
        taken = self._repository.claim(
            identity.key,
            route=identity.route,
            request_hash=identity.request_hash,
            resource_id=resource_id,
            keep_seconds=_KEEP_SECONDS,
        )
        if taken:
            return None
        used = self._repository.find(identity.key)
        if used is None:
            raise ConflictError("the Idempotency-Key is being cleaned up: send the request again")
        if (used.route, used.request_hash) != (identity.route, identity.request_hash):
            raise IdempotencyConflictError
        return used.resource_id

    def move(self, identity: RequestIdentity, resource_id: UUID) -> None:
        """Let a key that was taken stand for another thing than was thought when it was."""
        self._repository.move(identity.key, resource_id)

    def release(self, identity: RequestIdentity) -> None:
        """Let a key that was taken be as if it never was: what it stood for is no more."""
        self._repository.release(identity.key)
