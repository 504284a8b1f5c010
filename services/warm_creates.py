"""Creates that are given a sandbox which runs already, where a pool has one; else one is started as always."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from core.sealing import SecretBox
from repositories.live_sandboxes import SandboxRow
from repositories.pool_keeping import PoolKeepingRepository
from repositories.pools import PoolRepository, PoolRow, PoolTaking
from repositories.trial_ending import TrialEndingRepository
from services.early_ends import session_end
from services.idempotency import IdempotencyService, RequestIdentity
from services.live_sandboxes import LiveSandboxService, NewSandbox, PoolMember
from services.pools import is_full, is_poolable, pool_key, to_member
from services.sandbox_errors import PoolExhaustedError, PoolMissingError

__all__ = ["ANY_POOL", "Made", "PoolAsk", "WarmCreates"]

ANY_POOL = "*"


@dataclass(frozen=True, slots=True)
class PoolAsk:
    """A create that names a pool, or ANY_POOL. refuse: raises for a pool that is not what the create says it wants."""

    pool: str
    taking: PoolTaking
    refuse: Callable[[PoolRow], None]
    agrees: Callable[[PoolRow], bool]


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a create. warm: the sandbox, if it ran already; its ingress is at ingress_url, where there is one.

    pooled: whether a pool was asked for, or there is one that makes what was asked for.
    """

    sandbox_id: UUID
    is_replayed: bool = False
    warm: SandboxRow | None = None
    ingress_url: str | None = None
    pooled: bool = False


class WarmCreates:
    """Creates of one tenant, inside the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: int,
        sandboxes: LiveSandboxService,
        *,
        box: SecretBox,
        default_runtime: str,
        max_age_seconds: float,
        actor: str,
    ) -> None:
        """sandboxes: of the same tenant and connection. The rest: as for PoolService."""
        self._connection = connection
        self._sandboxes = sandboxes
        self._pools = PoolRepository(connection, tenant_id)
        self._keeping = PoolKeepingRepository(connection)
        self._keys = IdempotencyService(connection, tenant_id)
        self._box = box
        self._default_runtime = default_runtime
        self._max_age_seconds = max_age_seconds
        self._actor = actor

    def create(self, new: NewSandbox, sandbox_id: UUID, identity: RequestIdentity | None = None) -> Made:
        """Accept a sandbox: a free member of a pool that makes just this one, else a new one under sandbox_id.

        Raises what LiveSandboxService.create raises.
        """
        earlier = self._keys.claim(identity, sandbox_id) if identity is not None else None
        if earlier is not None:
            return Made(earlier, is_replayed=True)
        self._sandboxes.check_timeout(new.timeout_seconds)
        pools = self._pools.with_key(pool_key(new, self._default_runtime)) if is_poolable(new) else []
        if pools:
            made = self._take(pools, to_taking(new), identity)
            if made is not None:
                return made
        self._sandboxes.create(new, sandbox_id)
        return Made(sandbox_id, pooled=bool(pools))

    def create_from(self, ask: PoolAsk, sandbox_id: UUID, identity: RequestIdentity | None = None) -> Made:
        """Give a member of the pool that is asked for: a free one, else a new one as long as the pool may grow.

        Raises PoolMissingError, PoolExhaustedError, what ask.refuse raises, and what LiveSandboxService.create raises.
        """
        earlier = self._keys.claim(identity, sandbox_id) if identity is not None else None
        if earlier is not None:
            return Made(earlier, is_replayed=True)
        self._sandboxes.check_timeout(ask.taking.timeout_seconds)
        pools = self._asked(ask)
        made = self._take([pool.id for pool in pools], ask.taking, identity)
        if made is not None:
            return made
        for pool in pools:
            if self._grow(pool, sandbox_id, ask.taking):
                return Made(sandbox_id, pooled=True)
        raise PoolExhaustedError(ask.pool, [pool.id for pool in pools])

    def give_up(self, sandbox_id: UUID, identity: RequestIdentity | None = None) -> None:
        """End a member that was taken and does not answer; the create that took it begins anew."""
        self._pools.discard(sandbox_id, actor=self._actor)
        TrialEndingRepository(self._connection).end_trials([sandbox_id], session_end("POOL_MEMBER_DEAD"))
        if identity is not None:
            self._keys.release(identity)

    def _asked(self, ask: PoolAsk) -> list[PoolRow]:
        if ask.pool == ANY_POOL:
            pools = [pool for pool in self._pools.all() if ask.agrees(pool)]
            if not pools:
                raise PoolMissingError("that makes what the request asks for")
            return pools
        pool = self._pools.find(ask.pool)
        if pool is None:
            raise PoolMissingError(ask.pool[:253])
        ask.refuse(pool)
        return [pool]

    def _begin(self, identity: RequestIdentity | None, sandbox_id: UUID, dead: UUID | None) -> UUID | None:
        if dead is not None:
            self._pools.discard(dead, actor=self._actor)
            TrialEndingRepository(self._connection).end_trials([dead], session_end("POOL_MEMBER_DEAD"))
            return None
        return self._keys.claim(identity, sandbox_id) if identity is not None else None

    def _take(
        self, pools: Sequence[UUID], taking: PoolTaking, identity: RequestIdentity | None
    ) -> Made | None:
        taken = self._pools.take(pools, taking, actor=self._actor)
        if taken is None:
            return None
        if identity is not None:
            self._keys.move(identity, taken.sandbox.id)
        return Made(taken.sandbox.id, warm=taken.sandbox, ingress_url=taken.ingress_url, pooled=True)

    def _grow(self, pool: PoolRow, sandbox_id: UUID, taking: PoolTaking) -> bool:
        """Start a member that is somebody's from its beginning. False: there are as many as there may be."""
        locked = self._keeping.lock(pool.id)
        if locked is None or is_full(
            locked, self._keeping.counts(pool.id, max_age_seconds=self._max_age_seconds)
        ):
            return False
        new = replace(
            to_member(locked, self._box),
            metadata={**locked.metadata, **taking.metadata},
            extensions=taking.extensions,
            timeout_seconds=taking.timeout_seconds,
            renew_seconds=taking.renew_seconds,
            is_secure=taking.is_secure,
        )
        member = PoolMember(locked.name, locked.id, locked.revision, is_warm=False)
        self._sandboxes.add_member(new, sandbox_id, member)
        return True


def to_taking(new: NewSandbox) -> PoolTaking:
    """Give the part of a create that a member is still to be given."""
    return PoolTaking(new.metadata, new.extensions, new.timeout_seconds, new.renew_seconds, new.is_secure)
