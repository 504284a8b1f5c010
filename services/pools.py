"""Warm pools of one tenant: made, looked at, resized, ended. The scheduler fills them (`services.pool_keeping`)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from core.ids import new_id
from core.sealing import SecretBox
from repositories.pool_keeping import KeptPool, MemberCounts, PoolKeepingRepository
from repositories.pools import PoolRepository, PoolRow, PoolTemplateRow
from repositories.trial_ending import TrialEndingRepository
from services.early_ends import session_end
from services.live_sandboxes import NewSandbox, SandboxPolicy
from services.pool_plan import Capacity
from services.pool_yielding import PoolYielding
from services.runtime_offers import labels_needed
from services.sandbox_errors import PoolMissingError, WireConflictError, WireInvalidError
from services.session_spec import SessionSpec

__all__ = [
    "DELETED",
    "MAX_POOLS",
    "PoolService",
    "PoolTemplate",
    "capacity_of",
    "check_capacity",
    "end_members",
    "is_full",
    "is_poolable",
    "pool_auth_purpose",
    "pool_key",
    "to_member",
]

MAX_POOLS = 100
"""Of one tenant: each is looked at every second."""

DELETED = "POOL_DELETED"

_AT_CLAIM = frozenset({"metadata", "extensions", "timeout_seconds", "renew_seconds", "is_secure"})
"""What a sandbox can still be given when it runs already."""
_POLICY = SandboxPolicy()
_NO_ROOM = "the tenant's quotas have no room now for another member beside an attempt that takes one"
_IN_KEY = frozenset({"spec", "image", "entrypoint", "runtime", "platform", "node_labels"})


@dataclass(frozen=True, slots=True)
class PoolTemplate:
    """From what members are made. sent: as the client wrote it, without credentials."""

    sent: Mapping[str, Any]
    sandbox: NewSandbox


class PoolService:
    """Pools of one tenant, inside the caller's transaction. Raises PoolMissingError for those of others."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: int,
        *,
        box: SecretBox,
        default_runtime: str,
        max_age_seconds: float,
        actor: str,
        policy: SandboxPolicy = _POLICY,
    ) -> None:
        """box: seals passwords of registries. max_age_seconds: see the setting. actor: who calls, for the history.

        policy: on what a member may ask for.
        """
        self._connection = connection
        self._pools = PoolRepository(connection, tenant_id)
        self._keeping = PoolKeepingRepository(connection)
        self._box = box
        self._default_runtime = default_runtime
        self._max_age_seconds = max_age_seconds
        self._actor = actor
        self._policy = policy

    def create(self, name: str, template: PoolTemplate, capacity: Capacity) -> KeptPool:
        """Make one; members come soon. Raises WireConflictError for a name in use or too many pools."""
        check_capacity(capacity)
        if self._pools.count() >= MAX_POOLS:
            raise WireConflictError(
                "KUBERNETES::POOL_API_ERROR",
                f"there are {MAX_POOLS} pools, and no more can be made: delete one",
            )
        pool_id = new_id()
        row = self._to_row(pool_id, template)
        if not self._pools.insert(pool_id, name, row, asdict(capacity)):
            raise WireConflictError("KUBERNETES::POOL_ALREADY_EXISTS", f"there is a pool {name} already")
        return self.get(name)

    def get(self, name: str) -> KeptPool:
        """Look at one."""
        return self._with_counts(_there(self._pools.find(name), name))

    def all(self) -> list[KeptPool]:
        """Look at all, by name."""
        return [self._with_counts(pool) for pool in self._pools.all()]

    def change(self, name: str, *, capacity: Capacity | None, template: PoolTemplate | None) -> KeptPool:
        """Resize one, or make its members from something else; sandboxes that were taken already stay as they are."""
        pool = _there(self._pools.lock(name), name)
        if capacity is not None:
            check_capacity(capacity)
            self._pools.resize(pool.id, asdict(capacity))
        if template is not None:
            self._pools.change_template(pool.id, self._to_row(pool.id, template))
        return self.get(name)

    def delete(self, name: str) -> dict[UUID, list[UUID]]:
        """Forget one and end its free members; those that were taken live on. Gives what has to end, by node."""
        pool = _there(self._pools.lock(name), name)
        self._pools.delete(pool.id)
        ended = self._keeping.retire(pool.id, limit=100_000, reason=DELETED, actor=self._actor)
        return end_members(self._connection, ended, DELETED)

    def _with_counts(self, pool: PoolRow) -> KeptPool:
        counts = self._keeping.counts(pool.id, max_age_seconds=self._max_age_seconds)
        wanted = min(max(pool.buffer_min, pool.pool_min), pool.pool_max)
        is_short = counts.free + counts.starting < wanted
        if counts.problem is None and is_short and pool.spec.get("job_workdir") is not None:
            yielding = PoolYielding(self._connection, pool.tenant_id, self._policy)
            if yielding.room_for(pool) == 0:
                counts = replace(counts, problem=_NO_ROOM)
        return KeptPool(pool, counts)

    def _check_offered(self, new: NewSandbox) -> None:
        try:
            self._policy.caps.check_live(new.spec.resources)
            runtime = new.runtime or self._default_runtime
            labels_needed(
                self._connection,
                new.spec,
                runtime,
                is_named=new.runtime is not None,
                reserved=self._policy.reserved(new.spec.resources),
                others=new.node_labels,
            )
        except WireInvalidError as error:
            message = error.message.removeprefix(f"{error.field}: ")
            raise WireInvalidError(error.code, message, field=f"template.{error.field}") from error

    def _to_row(self, pool_id: UUID, template: PoolTemplate) -> PoolTemplateRow:
        new = template.sandbox
        self._check_offered(new)
        auth = None
        if new.auth is not None:
            auth = self._box.seal("\0".join(new.auth).encode(), purpose=pool_auth_purpose(pool_id))
        return PoolTemplateRow(
            template=template.sent,
            spec=new.spec.to_json(),
            key=pool_key(new, self._default_runtime),
            runtime=new.runtime or self._default_runtime,
            image=new.image or new.spec.image,
            entrypoint=new.entrypoint,
            platform=new.platform,
            metadata=new.metadata,
            node_labels=new.node_labels,
            image_auth=auth,
        )


def pool_key(new: NewSandbox, default_runtime: str) -> str:
    """Give a digest of all that cannot be changed any more once a sandbox runs: its full spec."""
    parts = [new.spec.digest, new.runtime or default_runtime, sorted(new.node_labels.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_poolable(new: NewSandbox) -> bool:
    """Whether a create wants nothing but what its key says and what can be given to a sandbox that runs.

    Credentials are asked for anew: who may not pull the image is told so.
    """
    rest = {field.name: field.default for field in fields(new)}.keys() - _AT_CLAIM - _IN_KEY
    return not any(getattr(new, name) for name in rest)


def to_member(pool: PoolRow, box: SecretBox) -> NewSandbox:
    """Say what a member of the pool is. Raises SealBrokenError for credentials that cannot be read."""
    auth = None
    if pool.image_auth is not None:
        secret = box.unseal(pool.image_auth, purpose=pool_auth_purpose(pool.id)).decode()
        username, password = secret.split("\0", 1)
        auth = (username, password)
    return NewSandbox(
        spec=SessionSpec.from_json(pool.spec),
        image=pool.image,
        entrypoint=tuple(pool.entrypoint),
        timeout_seconds=None,
        runtime=pool.runtime,
        platform=pool.platform,
        metadata=pool.metadata,
        auth=auth,
        node_labels=pool.node_labels,
    )


def capacity_of(pool: PoolRow) -> Capacity:
    """Give how many there are to be."""
    return Capacity(pool.buffer_min, pool.buffer_max, pool.pool_min, pool.pool_max)


def check_capacity(capacity: Capacity) -> None:
    """Raise WireInvalidError for numbers that contradict each other."""
    for low, high, names in (
        (capacity.buffer_min, capacity.buffer_max, ("bufferMin", "bufferMax")),
        (capacity.pool_min, capacity.pool_max, ("poolMin", "poolMax")),
        (capacity.buffer_min, capacity.pool_max, ("bufferMin", "poolMax")),
    ):
        if low > high:
            raise WireInvalidError(
                "SANDBOX::INVALID_PARAMETER",
                f"is {low}, which is more than {names[1]}, {high}",
                field=f"capacitySpec.{names[0]}",
            )


def pool_auth_purpose(pool_id: UUID) -> str:
    """Say what sealed registry credentials of a pool are for."""
    return f"image-auth/pool/{pool_id}"


def end_members(connection: Connection, ids: Sequence[UUID], reason: str) -> dict[UUID, list[UUID]]:
    """End the trials of members that were told to go; gives those that run, by node."""
    nodes: dict[UUID, list[UUID]] = {}
    if not ids:
        return nodes
    for trial in TrialEndingRepository(connection).end_trials(ids, session_end(reason)):
        if trial.node_id is not None:
            nodes.setdefault(trial.node_id, []).append(trial.trial_id)
    return nodes


def _there(pool: PoolRow | None, name: str) -> PoolRow:
    if pool is None:
        raise PoolMissingError(name[:253])
    return pool


def is_full(pool: PoolRow, counts: MemberCounts) -> bool:
    """Whether there are as many members as there may be, those that are about to go included."""
    return counts.total >= pool.pool_max
