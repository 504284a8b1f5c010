"""Tenants, and API keys: a tenant's acts for that tenant, an operator's for the installation and for no tenant.

A key is `sm_` and 40 random characters, 238 bits. Stored are its SHA-256 and its first ten characters, by which it is
looked up; so much entropy needs no slow hash.
"""

import hashlib
import hmac
import re
import secrets
import string
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.errors import ConflictError, InvalidRequestError, UnauthenticatedError
from repositories.tenants import TenantRepository

__all__ = [
    "CONFIGURED_KEY_ID",
    "DEFAULT_TENANT",
    "Authenticator",
    "Operator",
    "Principal",
    "authenticate",
    "check_tenant_name",
    "create_admin_key",
    "create_api_key",
    "ensure_tenant",
    "hash_key",
    "revoke_api_key",
]

DEFAULT_TENANT = "default"
"""Who needs no tenants has this one."""

CONFIGURED_KEY_ID = UUID("00000000-0000-7000-8000-000000000001")
"""Of the key that the settings name, which has no row."""

_ALPHABET = string.ascii_letters + string.digits
_KEY = re.compile(r"sm_[A-Za-z0-9]{40}")
_PREFIX_CHARS = 10
_CACHE_SECONDS = 5.0
"""How long a revoked key may still be honoured. Long enough to spare a busy client's requests the look-up."""
_CACHE_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. The tenant comes from the key and from nowhere else."""

    tenant_id: int
    key_id: UUID


@dataclass(frozen=True, slots=True)
class Operator:
    """Who runs the installation calls."""

    key_id: UUID


_Holder = TypeVar("_Holder", bound=Principal | Operator)


def check_tenant_name(name: str) -> str:
    """Give the name back. Raises InvalidRequestError for one that no tenant can have."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise InvalidRequestError(
            "a tenant name has 1 to 100 letters, digits, '.', '_' and '-'", field="name"
        )
    return name


def ensure_tenant(connection: Connection, name: str) -> int:
    """Give the id of the tenant of this name, made if missing."""
    return TenantRepository(connection).ensure(check_tenant_name(name))


def create_api_key(connection: Connection, tenant_id: int, name: str, *, key: str | None = None) -> str:
    """Store a key for a tenant and give its text, which is kept nowhere.

    key: None makes a new one; else this one, which may be stored already for the same tenant. Raises
    InvalidRequestError for a key of another form, ConflictError for one that was revoked or belongs to another tenant.
    """
    text = key if key is not None else _new_key()
    if not _KEY.fullmatch(text):
        raise InvalidRequestError("an API key is 'sm_' and 40 letters or digits", field="key")
    repository = TenantRepository(connection)
    digest = hash_key(text)
    added = repository.add_key(tenant_id, name=name, prefix=text[:_PREFIX_CHARS], key_hash=digest)
    if not added and repository.key_owner(digest) != tenant_id:
        raise ConflictError("this API key is in use or was revoked", field="key")
    return text


def create_admin_key(connection: Connection, name: str) -> str:
    """Store a new operator's key and give its text, which is kept nowhere."""
    text = _new_key()
    TenantRepository(connection).add_key(
        None, name=name, prefix=text[:_PREFIX_CHARS], key_hash=hash_key(text)
    )
    return text


def revoke_api_key(connection: Connection, tenant_id: int, key_id: UUID) -> bool:
    """End a key; API processes follow within five seconds. False: no such live key."""
    return TenantRepository(connection).revoke_key(tenant_id, key_id)


def authenticate(connection: Connection, key: str) -> Principal | Operator:
    """Find who a key belongs to. Raises UnauthenticatedError, the same whatever is wrong."""
    if not _KEY.fullmatch(key):
        raise _unauthenticated()
    digest = hash_key(key)
    for row in TenantRepository(connection).keys(key[:_PREFIX_CHARS]):
        if hmac.compare_digest(row.key_hash, digest):
            return Operator(row.key_id) if row.tenant_id is None else Principal(row.tenant_id, row.key_id)
    raise _unauthenticated()


class Authenticator:
    """Authenticates with a short memory for keys that were good. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        *,
        configured_key: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """engine: used for keys not remembered. configured_key: one more key of the tenant `default`, of any form.

        Only its hash is kept, here and nowhere else: it ends with the setting that gave it.
        """
        self._engine = engine
        self._configured = None if configured_key is None else hash_key(configured_key)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, Principal | Operator]] = {}

    def authenticate(self, key: str) -> Principal | Operator:
        """Find who a key belongs to. Raises UnauthenticatedError."""
        digest = hash_key(key)
        is_configured = self._configured is not None and hmac.compare_digest(digest, self._configured)
        if not is_configured and not _KEY.fullmatch(key):
            raise _unauthenticated()
        if is_configured:
            return self._remembered(digest, self._default_tenant)
        return self._remembered(digest, lambda connection: authenticate(connection, key))

    def known(self, key: str) -> Principal | Operator | None:
        """Give whom `authenticate` found for this key a moment ago, without asking anybody."""
        until, holder = self._known.get(hash_key(key), (0.0, None))
        return holder if self._monotonic() < until else None

    def anonymous(self) -> Principal:
        """Give the tenant `default` without a key: for callers that were found to need none."""
        return self._remembered(b"", self._default_tenant)

    def recheck(self, key: str | None) -> None:
        """See that a caller may go on. key: None for one that needed none. Raises UnauthenticatedError."""
        if key is not None:
            self.authenticate(key)

    def forget(self) -> None:
        """Forget all good keys: the next call of each asks the database."""
        with self._lock:
            self._known.clear()

    def _remembered(self, digest: bytes, find: Callable[[Connection], _Holder]) -> _Holder:
        """Give whom a look-up found a moment ago, else look up."""
        now = self._monotonic()
        with self._lock:
            until, holder = self._known.get(digest, (0.0, None))
        if holder is not None and now < until:
            # A digest is always looked up in the same way.
            return cast("_Holder", holder)
        with self._engine.begin() as connection:
            found = find(connection)
        with self._lock:
            if len(self._known) >= _CACHE_ENTRIES:
                self._known.clear()
            self._known[digest] = (now + _CACHE_SECONDS, found)
        return found

    @staticmethod
    def _default_tenant(connection: Connection) -> Principal:
        return Principal(ensure_tenant(connection, DEFAULT_TENANT), CONFIGURED_KEY_ID)


def _new_key() -> str:
    return "sm_" + "".join(secrets.choice(_ALPHABET) for _ in range(40))


def hash_key(key: str) -> bytes:
    """Give what is stored of a key."""
    return hashlib.sha256(key.encode()).digest()


def _unauthenticated() -> UnauthenticatedError:
    return UnauthenticatedError("send a valid API key: 'Authorization: Bearer sm_...'")
