"""What the routes work with: built once per process, handed out per request."""

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Annotated

import redis
from fastapi import Depends, Header, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Connection, Engine
from starlette.requests import HTTPConnection

from api.errors import TooManyFailuresError
from api.metrics import ApiMetrics
from api.schemas.fields import PRINTABLE_PATTERN
from api.validation import JobChecker
from core.blobstore import BlobStore
from core.config import Settings
from core.errors import ForbiddenError, UnauthenticatedError
from core.outbound import AddressGuard
from core.sealing import SecretBox
from core.secret_rules import is_loopback
from services.batch_verbs import BatchVerbService
from services.batches import BatchService
from services.blobs import BlobService
from services.dead_letters import DeadLetterService
from services.diagnostics import DiagnosticService
from services.fresh_endpoints import FreshEndpoints
from services.history import HistoryService
from services.idempotency import RequestIdentity, hash_request
from services.live_sandboxes import LiveSandboxService, SandboxPolicy
from services.log_hub import LogHub
from services.member_probe import MemberProbe
from services.pools import PoolService
from services.regrades import RegradeService
from services.sandbox_caps import SandboxCaps, sandbox_caps
from services.schedules import ScheduleService
from services.snapshots import SnapshotService
from services.tenants import Authenticator, Operator, Principal
from services.trials import TrialService
from services.wake import Wake
from services.warm_creates import WarmCreates
from services.webhooks import WebhookService

__all__ = [
    "Admin",
    "ApiServices",
    "Caller",
    "FailureLimiter",
    "IdempotencyKey",
    "Services",
    "authenticate_call",
    "make_identity",
]


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Long-lived parts of one API process. creators: how many creates may be worked on at a time."""

    settings: Settings
    engine: Engine
    redis: redis.Redis
    wake: Wake
    hub: LogHub
    store: BlobStore
    authenticator: Authenticator
    failures: "FailureLimiter"
    checker: JobChecker
    metrics: ApiMetrics
    box: SecretBox
    guard: AddressGuard
    probe: MemberProbe
    endpoints: FreshEndpoints
    creators: asyncio.Semaphore

    @property
    def caps(self) -> SandboxCaps:
        """The most that one sandbox may ask for."""
        return sandbox_caps(self.settings)

    @property
    def _policy(self) -> SandboxPolicy:
        settings = self.settings
        return SandboxPolicy(
            default_runtime=settings.runtime,
            cpu_request=settings.sandbox_cpu_request,
            memory_request=settings.sandbox_memory_request,
            start_seconds=settings.sandbox_start_timeout_seconds,
            pull_seconds=settings.sandbox_pull_timeout_seconds,
            max_timeout_seconds=settings.max_sandbox_timeout_seconds,
            caps=self.caps,
        )

    def batches(self, connection: Connection, caller: Principal) -> BatchService:
        """Batches of the caller's tenant."""
        return BatchService(
            connection,
            caller.tenant_id,
            store=self.store,
            default_runtime=self.settings.runtime,
            caps=self.caps,
        )

    def verbs(self, connection: Connection, caller: Principal) -> BatchVerbService:
        """What is done to the caller's batches, jobs and trials."""
        return BatchVerbService(connection, caller.tenant_id)

    def regrades(self, connection: Connection, caller: Principal) -> RegradeService:
        """Later grades of the caller's trials."""
        return RegradeService(connection, caller.tenant_id)

    def trials(self, connection: Connection, caller: Principal) -> TrialService:
        """Trials of the caller's tenant."""
        return TrialService(connection, caller.tenant_id)

    def dead_letters(self, connection: Connection, caller: Principal) -> DeadLetterService:
        """Dead letters of the caller's tenant."""
        return DeadLetterService(connection, caller.tenant_id, self.batches(connection, caller))

    def sandboxes(self, connection: Connection, caller: Principal) -> LiveSandboxService:
        """Live sandboxes of the caller's tenant."""
        return LiveSandboxService(
            connection, caller.tenant_id, policy=self._policy, box=self.box, actor=f"key:{caller.key_id}"
        )

    def snapshots(self, connection: Connection, caller: Principal) -> SnapshotService:
        """Snapshots of the caller's sandboxes."""
        return SnapshotService(
            connection,
            caller.tenant_id,
            most=self.settings.max_snapshots,
            actor=f"key:{caller.key_id}",
        )

    def pools(self, connection: Connection, caller: Principal) -> PoolService:
        """Warm pools of the caller's tenant."""
        return PoolService(
            connection,
            caller.tenant_id,
            box=self.box,
            default_runtime=self.settings.runtime,
            max_age_seconds=self.settings.pool_member_age_seconds,
            actor=f"key:{caller.key_id}",
            policy=self._policy,
        )

    def warm_creates(self, connection: Connection, caller: Principal) -> WarmCreates:
        """Creates of the caller's tenant, which pools may answer."""
        return WarmCreates(
            connection,
            caller.tenant_id,
            self.sandboxes(connection, caller),
            box=self.box,
            default_runtime=self.settings.runtime,
            max_age_seconds=self.settings.pool_member_age_seconds,
            actor=f"key:{caller.key_id}",
        )

    def diagnostics(self, connection: Connection, caller: Principal) -> DiagnosticService:
        """What is wrong with the caller's sandboxes."""
        return DiagnosticService(connection, caller.tenant_id)

    def blobs(self, connection: Connection, caller: Principal) -> BlobService:
        """Blobs of the caller's tenant."""
        return BlobService(connection, caller.tenant_id, self.store)

    def history(self, connection: Connection, caller: Principal) -> HistoryService:
        """Archived batches of the caller's tenant."""
        return HistoryService(connection, caller.tenant_id)

    def schedules(self, connection: Connection, caller: Principal) -> ScheduleService:
        """Schedules of the caller's tenant."""
        return ScheduleService(connection, caller.tenant_id, store=self.store, caps=self.caps)

    def webhooks(self, connection: Connection, caller: Principal) -> WebhookService:
        """Webhooks of the caller's tenant."""
        return WebhookService(connection, caller.tenant_id, box=self.box)


class FailureLimiter:
    """Counts bad keys per address and minute. Good keys are never held up by others' bad ones."""

    def __init__(self, *, per_minute: int = 100) -> None:
        """per_minute: bad keys of one address that are answered 401; those after get 429."""
        self._limit = per_minute
        self._lock = threading.Lock()
        self._minute = 0
        self._counts: dict[str, int] = {}

    def count(self, address: str) -> bool:
        """Count a failure. True: the address is over its limit."""
        minute = int(time.monotonic() // 60)
        with self._lock:
            # A fresh table each minute bounds its size, too.
            if minute != self._minute or len(self._counts) > 100_000:
                self._minute, self._counts = minute, {}
            self._counts[address] = self._counts.get(address, 0) + 1
            return self._counts[address] > self._limit


def _services(request: Request) -> ApiServices:
    services: ApiServices = request.app.state.services
    return services


Services = Annotated[ApiServices, Depends(_services)]

_bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="`Authorization: Bearer sm_...`")
_header = APIKeyHeader(
    name="OPEN-SANDBOX-API-KEY",
    auto_error=False,
    scheme_name="header",
    description="The same keys, for its clients.",
)


_SIGNS_OF_OTHERS = {"origin", "forwarded", "x-forwarded-for", "x-real-ip"}
"""Headers of a page in a browser, and of a proxy that passes on what others ask."""


def _key_holder(
    request: Request,
    services: Services,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    header: Annotated[str | None, Security(_header)],
) -> Principal | Operator:
    # A gateway in front may use Authorization for itself, the other header only our clients know.
    key = header if header is not None else (bearer.credentials if bearer is not None else None)
    holder = authenticate_call(request, services, key)
    request.state.api_key = key
    return holder


def authenticate_call(call: HTTPConnection, services: ApiServices, key: str | None) -> Principal | Operator:
    """Say who calls. key: as the call shows it. May ask the database.

    Raises UnauthenticatedError, TooManyFailuresError.
    """
    if key is None and _may_come_without_key(call, services.settings):
        return services.authenticator.anonymous()
    try:
        return services.authenticator.authenticate(key or "")
    except UnauthenticatedError:
        if services.failures.count(call.client.host if call.client else "-"):
            raise TooManyFailuresError("too many calls with a bad key: wait a minute") from None
        raise


def _may_come_without_key(call: HTTPConnection, settings: Settings) -> bool:
    """Whether a call without a key acts for the default tenant: one by a program of this machine, if settings say so.

    Not by a page in its browser, which any site could make call us: pages of others send an Origin, and those that had
    a name of theirs lead here send it as Host.
    """
    if not settings.insecure_server or settings.server_api_key is not None:
        return False
    if not _SIGNS_OF_OTHERS.isdisjoint(call.headers):
        return False
    return is_loopback(call.client.host if call.client else "") and is_loopback(call.url.hostname or "")


def _caller(request: Request, holder: Annotated[Principal | Operator, Depends(_key_holder)]) -> Principal:
    if isinstance(holder, Operator):
        raise ForbiddenError("this is an operator's key, which acts for no tenant: use a key of the tenant")
    request.state.tenant_id = holder.tenant_id
    return holder


def _operator(holder: Annotated[Principal | Operator, Depends(_key_holder)]) -> Operator:
    if not isinstance(holder, Operator):
        raise ForbiddenError("only operators may do this: use a key of role admin")
    return holder


Caller = Annotated[Principal, Depends(_caller)]

Admin = Annotated[Operator, Depends(_operator)]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=PRINTABLE_PATTERN,
        description="Makes the call safe to repeat for seven days: the same body gives the same thing.",
    ),
]


def make_identity(key: str | None, route: str, body: object) -> RequestIdentity | None:
    """Say what makes two calls the same one. None without a key."""
    return None if key is None else RequestIdentity(key, route, hash_request(body))
