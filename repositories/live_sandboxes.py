"""SQL of a tenant's live sandboxes: insert, look, list, and what the tenant wishes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from repositories.tenant_base import TenantSqlRepository

__all__ = [
    "SANDBOX_COLUMNS",
    "LiveSandboxRepository",
    "NewSandboxRow",
    "PlacedSandbox",
    "SandboxEventRow",
    "SandboxRow",
    "WishRow",
]

# One statement for all its rows: it is on the way of every create. Members of a pool that are made together have one
# time, by which they are known as one try.
_INSERT = """
WITH batch AS (
  INSERT INTO batches (id, tenant_id, implicit, is_session, job_count, trial_count, traceparent)
  VALUES (%(batch_id)s, %(tenant_id)s, true, true, 1, 1, %(traceparent)s)
), job AS (
  INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)
  VALUES (%(job_id)s, %(tenant_id)s, %(batch_id)s, 0, 'sandbox', 'session', %(digest)s, %(spec)s::jsonb, 1)
), trial AS (
  INSERT INTO trials (id, tenant_id, batch_id, job_id, index, queue_deadline, priority, runtime, cpu_millicores,
                      memory_bytes, gpu, slots, node_labels, max_cpu_seconds)
  VALUES (%(id)s, %(tenant_id)s, %(batch_id)s, %(job_id)s, 0,
          clock_timestamp() + make_interval(secs => %(queue_seconds)s), %(priority)s, %(runtime)s, %(cpu_millicores)s,
          %(memory_bytes)s, %(gpu)s, 0, %(node_labels)s, %(max_cpu_seconds)s)
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message)
  VALUES (%(id)s, %(actor)s, 'SANDBOX_ACCEPTED', %(image)s)
)
INSERT INTO sandbox_sessions (trial_id, tenant_id, image, snapshot_id, entrypoint, platform, metadata, extensions, pool,
                              pool_id, pool_revision, is_warm, state_reason, expires_at, renew_seconds, image_auth,
                              access_token, is_secure, created_at, hidden_at)
SELECT %(id)s, %(tenant_id)s, %(image)s, %(snapshot_id)s, %(entrypoint)s, %(platform)s, %(metadata)s, %(extensions)s,
       %(pool)s, %(pool_id)s, %(pool_revision)s, %(is_warm)s, 'SANDBOX_ACCEPTED',
       t.now + make_interval(secs => %(timeout_seconds)s), %(renew_seconds)s, %(image_auth)s, %(access_token)s,
       %(is_secure)s, t.now, CASE WHEN %(is_warm)s THEN t.now END
FROM (SELECT CASE WHEN %(is_warm)s THEN now() ELSE clock_timestamp() END AS now) t
"""

SANDBOX_COLUMNS = """
s.trial_id AS id, s.image, s.snapshot_id, s.entrypoint, s.platform, s.metadata, s.extensions, s.pool, s.state,
s.state_reason, s.state_message, s.state_at, s.expires_at, s.renew_seconds, s.access_token, s.is_secure, s.node_id,
s.runtime, s.sandbox_name, s.created_at, s.running_at, s.ended_at, s.end_reason, s.ended_by, s.hidden_at
"""
"""Of `sandbox_sessions s`: the fields of SandboxRow."""

# What is kept warm is nobody's yet.
_FIND = f"""
SELECT {SANDBOX_COLUMNS} FROM sandbox_sessions s
WHERE s.trial_id = %(id)s AND s.tenant_id = %(tenant_id)s AND NOT s.is_warm
"""
_LOCK = _FIND + " FOR NO KEY UPDATE"

_MATCHES = """
s.tenant_id = %(tenant_id)s AND s.hidden_at IS NULL
AND (%(states)s::text[] IS NULL OR s.state = ANY(%(states)s)) AND (%(metadata)s::jsonb IS NULL
     OR s.metadata @> %(metadata)s)
"""

_PAGE = f"""
SELECT {SANDBOX_COLUMNS} FROM sandbox_sessions s WHERE {_MATCHES}
ORDER BY s.created_at DESC, s.trial_id DESC LIMIT %(limit)s OFFSET %(offset)s
"""

_TOTAL = f"SELECT count(*)::int AS n FROM sandbox_sessions s WHERE {_MATCHES}"

_SET_METADATA = f"""
UPDATE sandbox_sessions s SET metadata = %(metadata)s WHERE s.trial_id = %(id)s AND s.tenant_id = %(tenant_id)s
RETURNING {SANDBOX_COLUMNS}
"""

_RENEW = """
WITH moved AS (
  UPDATE sandbox_sessions SET expires_at = %(expires_at)s
  WHERE trial_id = %(id)s AND tenant_id = %(tenant_id)s AND ended_at IS NULL AND state <> 'Stopping'
    AND expires_at IS NOT NULL
  RETURNING trial_id
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message)
  SELECT trial_id, %(actor)s, 'EXPIRATION_RENEWED', 'now ' || %(expires_at)s::text FROM moved
)
SELECT trial_id FROM moved
"""

_WISH = """
WITH moved AS (
  UPDATE sandbox_sessions SET state = %(state)s, state_reason = %(reason)s, state_message = NULL,
    state_at = clock_timestamp(), wish_no = wish_no + 1, ended_by = coalesce(%(ended_by)s, ended_by),
    end_reason = coalesce(%(end_reason)s, end_reason)
  WHERE trial_id = %(id)s AND tenant_id = %(tenant_id)s AND ended_at IS NULL
  RETURNING trial_id, node_id
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason) SELECT trial_id, %(actor)s, %(reason)s FROM moved
)
SELECT node_id FROM moved
"""

_END_DELETED = """
WITH ended AS (
  UPDATE sandbox_sessions SET state = 'Terminated', state_at = clock_timestamp(), ended_at = clock_timestamp(),
                              hidden_at = clock_timestamp()
  WHERE trial_id = %(id)s AND tenant_id = %(tenant_id)s AND state = 'Stopping'
  RETURNING trial_id, end_reason, ended_by
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT trial_id, ended_by, end_reason, 'it had not been started' FROM ended
"""

_HIDE = """
UPDATE sandbox_sessions SET hidden_at = clock_timestamp()
WHERE trial_id = %(id)s AND tenant_id = %(tenant_id)s AND hidden_at IS NULL
"""

_FIND_WITH_INGRESS = f"""
SELECT {SANDBOX_COLUMNS}, n.ingress_url, n.ingress_address,
       coalesce(s.expires_at <= clock_timestamp(), false) AS has_expired
FROM sandbox_sessions s LEFT JOIN nodes n ON n.id = s.node_id
WHERE s.trial_id = %(id)s AND s.tenant_id = %(tenant_id)s AND NOT s.is_warm
"""

_EVENTS = """
SELECT e.at, e.actor, e.reason, e.message FROM sandbox_events e
JOIN sandbox_sessions s ON s.trial_id = e.trial_id AND s.tenant_id = %(tenant_id)s
WHERE e.trial_id = %(id)s ORDER BY e.n DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class NewSandboxRow:
    """All that is inserted for one live sandbox. spec: JSON text. Seconds, bytes and counts as the names say.

    timeout_seconds None: it never expires. image_auth: sealed. pool_id, pool_revision, is_warm: of a member of a pool.
    """

    id: UUID
    batch_id: UUID
    job_id: UUID
    digest: str
    spec: str
    runtime: str
    cpu_millicores: int
    memory_bytes: int
    gpu: int
    node_labels: Mapping[str, str]
    max_cpu_seconds: float
    queue_seconds: float
    image: str | None
    snapshot_id: UUID | None
    entrypoint: Sequence[str]
    platform: Mapping[str, str] | None
    metadata: Mapping[str, str]
    extensions: Mapping[str, str]
    pool: str | None
    timeout_seconds: float | None
    renew_seconds: int | None
    image_auth: bytes | None
    access_token: str
    is_secure: bool
    traceparent: str | None
    actor: str
    pool_id: UUID | None = None
    pool_revision: int | None = None
    is_warm: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A live sandbox as it is now, or as it ended."""

    id: UUID
    image: str | None
    snapshot_id: UUID | None
    entrypoint: list[str]
    platform: dict[str, str] | None
    metadata: dict[str, str]
    extensions: dict[str, str]
    pool: str | None
    state: str
    state_reason: str | None
    state_message: str | None
    state_at: datetime
    expires_at: datetime | None
    renew_seconds: int | None
    access_token: str
    is_secure: bool
    node_id: UUID | None
    runtime: str | None
    sandbox_name: str | None
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    ended_by: str | None
    hidden_at: datetime | None


@dataclass(frozen=True, slots=True)
class SandboxEventRow:
    """One entry of a sandbox's history."""

    at: datetime
    actor: str
    reason: str
    message: str | None


@dataclass(frozen=True, slots=True)
class WishRow:
    """What a tenant wishes of a sandbox. end_reason, ended_by: of a delete."""

    state: str
    reason: str
    actor: str
    end_reason: str | None = None
    ended_by: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedSandbox:
    """A sandbox, and its node's ingress: its URL for the API, its address for clients; None where there is none.

    has_expired: its time is over, whether or not anybody has ended it yet.
    """

    sandbox: SandboxRow
    ingress_url: str | None
    ingress_address: str | None
    has_expired: bool


class LiveSandboxRepository(TenantSqlRepository):
    """Live sandboxes of one tenant."""

    def insert(self, row: NewSandboxRow) -> None:
        """Insert batch, job, trial and session of a new sandbox."""
        parameters = {name: getattr(row, name) for name in NewSandboxRow.__slots__}
        parameters |= {
            "platform": None if row.platform is None else Jsonb(row.platform),
            "entrypoint": list(row.entrypoint),
            "metadata": Jsonb(row.metadata),
            "extensions": Jsonb(row.extensions),
            "node_labels": Jsonb(row.node_labels),
        }
        self._mine_count(_INSERT, parameters)

    def find(self, sandbox_id: UUID) -> SandboxRow | None:
        """Look one up, hidden or not."""
        row = self._mine_or_none(_FIND, {"id": sandbox_id})
        return None if row is None else SandboxRow(**row)

    def lock(self, sandbox_id: UUID) -> SandboxRow | None:
        """Look one up, and let nobody change it until the end of the transaction."""
        row = self._mine_or_none(_LOCK, {"id": sandbox_id})
        return None if row is None else SandboxRow(**row)

    def page(
        self,
        *,
        states: Sequence[str] | None,
        metadata: Mapping[str, str] | None,
        limit: int,
        offset: int,
    ) -> list[SandboxRow]:
        """Those that are visible, newest first. states: None: all. metadata: all of it has to be there."""
        parameters = {**_filters(states, metadata), "limit": limit, "offset": offset}
        return [SandboxRow(**row) for row in self._mine(_PAGE, parameters)]

    def total(self, *, states: Sequence[str] | None, metadata: Mapping[str, str] | None) -> int:
        """How many `page` has in all."""
        row = self._mine_or_none(_TOTAL, _filters(states, metadata))
        return 0 if row is None else int(row["n"])

    def set_metadata(self, sandbox_id: UUID, metadata: Mapping[str, str]) -> SandboxRow | None:
        """Replace the metadata."""
        row = self._mine_or_none(_SET_METADATA, {"id": sandbox_id, "metadata": Jsonb(metadata)})
        return None if row is None else SandboxRow(**row)

    def renew(self, sandbox_id: UUID, expires_at: datetime, *, actor: str) -> bool:
        """Move the expiry. False: it has none, or has ended."""
        return bool(self._mine(_RENEW, {"id": sandbox_id, "expires_at": expires_at, "actor": actor}))

    def wish(self, sandbox_id: UUID, wish: WishRow) -> UUID | None:
        """Write what is wished of one that has not ended; gives the node that has to hear of it."""
        parameters = {name: getattr(wish, name) for name in WishRow.__slots__}
        row = self._mine_or_none(_WISH, {"id": sandbox_id, **parameters})
        return None if row is None else row["node_id"]

    def end_deleted(self, sandbox_id: UUID) -> None:
        """Write that one whose end is wished is over: no node has it."""
        self._mine_count(_END_DELETED, {"id": sandbox_id})

    def now(self) -> datetime:
        """Give the time by which sandboxes expire."""
        row = self._row("SELECT clock_timestamp() AS now", {})
        if row is None:
            raise LookupError("the database has no clock")
        now: datetime = row["now"]
        return now

    def hide(self, sandbox_id: UUID) -> None:
        """Let the wire say from now on that there is none."""
        self._mine_count(_HIDE, {"id": sandbox_id})

    def find_with_ingress(self, sandbox_id: UUID) -> PlacedSandbox | None:
        """Look one up, and where its node's ingress is."""
        row = self._mine_or_none(_FIND_WITH_INGRESS, {"id": sandbox_id})
        if row is None:
            return None
        place = {name: row.pop(name) for name in ("ingress_url", "ingress_address", "has_expired")}
        return PlacedSandbox(SandboxRow(**row), **place)

    def events(self, sandbox_id: UUID, *, limit: int) -> list[SandboxEventRow]:
        """The newest events, oldest of them first."""
        rows = self._mine(_EVENTS, {"id": sandbox_id, "limit": limit})
        return [SandboxEventRow(**row) for row in reversed(rows)]


def _filters(states: Sequence[str] | None, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "states": None if states is None else list(states),
        "metadata": None if metadata is None else Jsonb(metadata),
    }
