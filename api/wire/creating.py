"""From the body of a create to a sandbox: out of a pool where one has it, by the queue otherwise."""

import contextlib
import time
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from api.services import ApiServices, make_identity
from api.wire.bodies import read_body, read_json
from api.wire.pool_requests import pool_reference, to_pool_ask
from api.wire.requests import check_extensions, default_resources, to_new_sandbox
from api.wire.schemas import CreateSandboxRequest
from core.failpoints import failpoint
from core.ids import new_id
from core.logging import get_logger
from services.idempotency import RequestIdentity
from services.live_sandboxes import NewSandbox
from services.member_probe import Probe
from services.sandbox_errors import PoolExhaustedError
from services.tenants import Principal
from services.warm_creates import Made, PoolAsk

__all__ = ["FullPools", "create", "wait_for_pools"]

log = get_logger(__name__)

_LOOK_SECONDS = 0.5
"""Between two looks at pools that are full, while nothing is heard of them."""


@dataclass(frozen=True, slots=True)
class FullPools:
    """A create that has to wait for one of these pools. error: what it gets in the end."""

    ask: PoolAsk
    identity: RequestIdentity | None
    error: PoolExhaustedError


def create(services: ApiServices, caller: Principal, body: bytes, key: str | None) -> Made | FullPools:
    """Read a create, and do it. Blocks. Raises what is wrong with it. key: of idempotency."""
    began = time.monotonic()
    value = read_json(body)
    request = read_body(CreateSandboxRequest, value)
    check_extensions(request.extensions or {})
    identity = make_identity(key, "sandboxes", value)
    pool = pool_reference(request)
    if pool is None:
        new = to_new_sandbox(request, default_resources(services.caps))
        return _create(services, caller, new, identity, began=began)
    ask = to_pool_ask(request, pool)
    try:
        return _create(services, caller, ask, identity, began=began)
    except PoolExhaustedError as error:
        return FullPools(ask, identity, error)


async def wait_for_pools(services: ApiServices, caller: Principal, full: FullPools) -> Made:
    """Wait a short while for a member. Raises PoolExhaustedError."""
    began = time.monotonic()
    deadline = began + services.settings.pool_wait_seconds
    services.wake.pools()
    # Of many pools that fit, the others are looked at by the clock.
    async with services.hub.listen(full.error.pools[0]) as listener:
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(PoolExhaustedError):
                return await run_in_threadpool(
                    _create, services, caller, full.ask, full.identity, began=began
                )
            await listener.next(min(left, _LOOK_SECONDS))
    services.metrics.pool_claims.labels("exhausted").inc()
    raise full.error


def _create(
    services: ApiServices,
    caller: Principal,
    wanted: NewSandbox | PoolAsk,
    identity: RequestIdentity | None,
    *,
    began: float,
) -> Made:
    """Create, until what a pool gave answers, or what is started anew is accepted."""
    claims = services.metrics.pool_claims
    while True:
        with services.engine.begin() as connection:
            creates = services.warm_creates(connection, caller)
            if isinstance(wanted, NewSandbox):
                made = creates.create(wanted, new_id(), identity)
            else:
                made = creates.create_from(wanted, new_id(), identity)
            failpoint("api.before_commit")
        failpoint("api.after_commit")
        warm = made.warm
        if warm is None:
            if made.pooled:
                claims.labels("miss").inc()
                services.wake.pools()
            return made
        if services.probe.check(made.ingress_url, warm.id, warm.access_token) is not Probe.DEAD:
            break
        claims.labels("dead").inc()
        log.warning("pool_member_dead", sandbox_id=str(warm.id), node_id=str(warm.node_id))
        with services.engine.begin() as connection:
            services.warm_creates(connection, caller).give_up(warm.id, identity)
        services.wake.cancelled({} if warm.node_id is None else {warm.node_id: [warm.id]})
    claims.labels("hit").inc()
    services.metrics.pool_claim_seconds.observe(time.monotonic() - began)
    services.wake.pools()
    return made
