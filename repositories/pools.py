"""SQL of a tenant's warm pools, and of taking a member out of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from repositories.live_sandboxes import SANDBOX_COLUMNS, SandboxRow
from repositories.nodes import TAKES_WORK
from repositories.tenant_base import TenantSqlRepository

__all__ = ["POOL_COLUMNS", "PoolRepository", "PoolRow", "PoolTaking", "PoolTemplateRow", "TakenRow"]

POOL_COLUMNS = """
p.id, p.tenant_id, p.name, p.template, p.spec, p.key, p.runtime, p.image, p.entrypoint, p.platform, p.metadata,
p.node_labels, p.image_auth, p.buffer_min, p.buffer_max, p.pool_min, p.pool_max, p.revision, p.created_at, p.updated_at
"""
"""Of `sandbox_pools p`: the fields of PoolRow."""

_TEMPLATE = """
template = %(template)s, spec = %(spec)s, key = %(key)s, runtime = %(runtime)s, image = %(image)s,
entrypoint = %(entrypoint)s, platform = %(platform)s, metadata = %(metadata)s, node_labels = %(node_labels)s,
image_auth = %(image_auth)s
"""

_INSERT = """
INSERT INTO sandbox_pools (id, tenant_id, name, template, spec, key, runtime, image, entrypoint, platform, metadata,
                           node_labels, image_auth, buffer_min, buffer_max, pool_min, pool_max)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(template)s, %(spec)s, %(key)s, %(runtime)s, %(image)s, %(entrypoint)s,
        %(platform)s, %(metadata)s, %(node_labels)s, %(image_auth)s, %(buffer_min)s, %(buffer_max)s, %(pool_min)s,
        %(pool_max)s)
ON CONFLICT (tenant_id, name) DO NOTHING
"""

# Two pools made at once by one tenant: whoever comes second counts both.
_COUNT = """
SELECT pg_advisory_xact_lock(hashtextextended('sandmill.pools', %(tenant_id)s)),
       (SELECT count(*)::int FROM sandbox_pools WHERE tenant_id = %(tenant_id)s) AS n
"""

_FIND = f"SELECT {POOL_COLUMNS} FROM sandbox_pools p WHERE p.tenant_id = %(tenant_id)s AND p.name = %(name)s"
_LOCK = _FIND + " FOR UPDATE"
_ALL = f"SELECT {POOL_COLUMNS} FROM sandbox_pools p WHERE p.tenant_id = %(tenant_id)s ORDER BY p.name"

_RESIZE = """
UPDATE sandbox_pools SET buffer_min = %(buffer_min)s, buffer_max = %(buffer_max)s, pool_min = %(pool_min)s,
                         pool_max = %(pool_max)s, updated_at = clock_timestamp()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_CHANGE_TEMPLATE = f"""
UPDATE sandbox_pools SET {_TEMPLATE}, revision = revision + 1, updated_at = clock_timestamp()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
"""

_DELETE = "DELETE FROM sandbox_pools WHERE id = %(id)s AND tenant_id = %(tenant_id)s"

# Never one that is for jobs, whichever pools are named. The longest warm first. On a node that takes work: what waits
# on another one may be about to end with it. Locked rows are somebody else's already. The expiry and the start of the
# sandbox's life are one moment.
_TAKE = f"""
WITH picked AS (
  SELECT s.trial_id, p.metadata FROM sandbox_pools p
  JOIN sandbox_sessions s ON s.pool_id = p.id AND s.pool_revision = p.revision
  JOIN nodes n ON n.id = s.node_id
  WHERE p.tenant_id = %(tenant_id)s AND p.id = ANY(%(pools)s::uuid[]) AND NOT p.spec ? 'job_workdir'
    AND s.is_warm AND s.ended_at IS NULL AND s.state = 'Running' AND {TAKES_WORK}
  ORDER BY s.running_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED
), taken AS (
  UPDATE sandbox_sessions s SET is_warm = false, hidden_at = NULL, metadata = k.metadata || %(metadata)s::jsonb,
    extensions = %(extensions)s, renew_seconds = %(renew_seconds)s, is_secure = %(is_secure)s,
    created_at = t.now, state_at = t.now, expires_at = t.now + make_interval(secs => %(timeout_seconds)s)
  FROM picked k CROSS JOIN (SELECT clock_timestamp() AS now) t WHERE s.trial_id = k.trial_id
  RETURNING {SANDBOX_COLUMNS}
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message) SELECT id, %(actor)s, 'POOL_ALLOCATED', pool FROM taken
), reserved AS (
  -- Of tenants with a budget. Until now the sandbox could use no more than it may while it waits.
  UPDATE attempts a SET reserved_cpu_seconds = a.reserved_cpu_seconds
    + a.cpu_millicores / 1000.0 * coalesce(%(timeout_seconds)s::float8, 0)
  FROM taken t WHERE a.trial_id = t.id AND a.reserved_cpu_seconds IS NOT NULL AND a.finished_at IS NULL
)
SELECT t.*, (SELECT ingress_url FROM nodes WHERE id = t.node_id) AS ingress_url FROM taken t
"""

# Not those of private images: a create that does not show credentials for one gets what the registry says to that.
_BY_KEY = """
SELECT p.id FROM sandbox_pools p
WHERE p.tenant_id = %(tenant_id)s AND p.key = %(key)s AND p.image_auth IS NULL ORDER BY p.name
"""

# From here on it is as if its owner had deleted it.
_DISCARD = """
WITH moved AS (
  UPDATE sandbox_sessions SET state = 'Stopping', state_reason = 'POOL_MEMBER_DEAD', state_at = clock_timestamp(),
    wish_no = wish_no + 1, end_reason = 'POOL_MEMBER_DEAD', ended_by = %(actor)s
  WHERE trial_id = %(id)s AND tenant_id = %(tenant_id)s AND ended_at IS NULL
  RETURNING trial_id
)
INSERT INTO sandbox_events (trial_id, actor, reason) SELECT trial_id, %(actor)s, 'POOL_MEMBER_DEAD' FROM moved
"""


@dataclass(frozen=True, slots=True)
class PoolTemplateRow:
    """From what members are made. image_auth: sealed for the pool."""

    template: Mapping[str, Any]
    spec: Mapping[str, Any]
    key: str
    runtime: str
    image: str
    entrypoint: Sequence[str]
    platform: Mapping[str, str] | None
    metadata: Mapping[str, str]
    node_labels: Mapping[str, str]
    image_auth: bytes | None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool as it is stored."""

    id: UUID
    tenant_id: int
    name: str
    template: dict[str, Any]
    spec: dict[str, Any]
    key: str
    runtime: str
    image: str
    entrypoint: list[str]
    platform: dict[str, str] | None
    metadata: dict[str, str]
    node_labels: dict[str, str]
    image_auth: bytes | None
    buffer_min: int
    buffer_max: int
    pool_min: int
    pool_max: int
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PoolTaking:
    """What a member becomes when somebody takes it. timeout_seconds None: it never expires."""

    metadata: Mapping[str, str]
    extensions: Mapping[str, str]
    timeout_seconds: int | None
    renew_seconds: int | None
    is_secure: bool


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A member that was taken, and where the ingress of its node is."""

    sandbox: SandboxRow
    ingress_url: str | None


class PoolRepository(TenantSqlRepository):
    """Pools of one tenant."""

    def count(self) -> int:
        """How many there are; nobody else of the tenant counts until the end of the transaction."""
        row = self._mine_or_none(_COUNT)
        return 0 if row is None else int(row["n"])

    def insert(
        self, pool_id: UUID, name: str, template: PoolTemplateRow, capacity: Mapping[str, int]
    ) -> bool:
        """Store a pool. False: there is one of that name. capacity: by column."""
        return (
            self._mine_count(_INSERT, {"id": pool_id, "name": name, **_to_columns(template), **capacity}) == 1
        )

    def find(self, name: str) -> PoolRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"name": name})
        return None if row is None else PoolRow(**row)

    def lock(self, name: str) -> PoolRow | None:
        """Look one up, and let nobody change it or its members' number until the end of the transaction."""
        row = self._mine_or_none(_LOCK, {"name": name})
        return None if row is None else PoolRow(**row)

    def all(self) -> list[PoolRow]:
        """All, by name."""
        return [PoolRow(**row) for row in self._mine(_ALL)]

    def with_key(self, key: str) -> list[UUID]:
        """Those whose members are what a key stands for."""
        return [row["id"] for row in self._mine(_BY_KEY, {"key": key})]

    def resize(self, pool_id: UUID, capacity: Mapping[str, int]) -> None:
        """Say how many there are to be. capacity: by column."""
        self._mine_count(_RESIZE, {"id": pool_id, **capacity})

    def change_template(self, pool_id: UUID, template: PoolTemplateRow) -> None:
        """Make members from something else from now on."""
        self._mine_count(_CHANGE_TEMPLATE, {"id": pool_id, **_to_columns(template)})

    def delete(self, pool_id: UUID) -> None:
        """Forget it."""
        self._mine_count(_DELETE, {"id": pool_id})

    def take(self, pools: Sequence[UUID], taking: PoolTaking, *, actor: str) -> TakenRow | None:
        """Give somebody a free member of one of these pools. None: there is none now."""
        parameters = {
            "pools": list(pools),
            "metadata": Jsonb(taking.metadata),
            "extensions": Jsonb(taking.extensions),
            "timeout_seconds": taking.timeout_seconds,
            "renew_seconds": taking.renew_seconds,
            "is_secure": taking.is_secure,
            "actor": actor,
        }
        row = self._mine_or_none(_TAKE, parameters)
        if row is None:
            return None
        ingress_url = row.pop("ingress_url")
        return TakenRow(SandboxRow(**row), ingress_url)

    def discard(self, sandbox_id: UUID, *, actor: str) -> None:
        """Wish the end of one that was taken and does not answer."""
        self._mine_count(_DISCARD, {"id": sandbox_id, "actor": actor})


def _to_columns(template: PoolTemplateRow) -> dict[str, Any]:
    return {
        "template": Jsonb(template.template),
        "spec": Jsonb(template.spec),
        "key": template.key,
        "runtime": template.runtime,
        "image": template.image,
        "entrypoint": list(template.entrypoint),
        "platform": None if template.platform is None else Jsonb(template.platform),
        "metadata": Jsonb(template.metadata),
        "node_labels": Jsonb(template.node_labels),
        "image_auth": template.image_auth,
    }
