"""Live sandboxes of one tenant: open, look, list, change, end. The node's worker does what is wished here."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection

from core.ids import new_id
from core.jsonb import to_jsonb
from core.sealing import SecretBox
from core.tracing import current_traceparent
from models.live_sandboxes import WireState
from models.snapshots import SnapshotState
from repositories.live_sandboxes import (
    LiveSandboxRepository,
    NewSandboxRow,
    PlacedSandbox,
    SandboxEventRow,
    SandboxRow,
    WishRow,
)
from repositories.nodes import NodeReadRepository
from repositories.pool_keeping import WARM_PRIORITY
from repositories.snapshots import SnapshotRepository
from repositories.trial_ending import TrialEndingRepository
from services.early_ends import session_end
from services.idempotency import IdempotencyService, RequestIdentity
from services.jobspec import Resources
from services.node_capabilities import asks_for_capabilities
from services.queue_room import QueueRoom
from services.runtime_offers import Reserved, capability_labels, labels_needed
from services.sandbox_caps import DEFAULT_CAPS, SandboxCaps
from services.sandbox_errors import (
    EndpointNotReadyError,
    SandboxMissingError,
    SandboxStateError,
    SnapshotMissingError,
    SnapshotStateError,
    WireConflictError,
    WireFailureError,
    WireInvalidError,
)
from services.sandbox_waits import SandboxWaits
from services.session_spec import SessionSpec
from services.visible_sandboxes import visible

__all__ = [
    "MAX_METADATA",
    "MAX_TIMEOUT_SECONDS",
    "NODE_LABEL",
    "Deletion",
    "Endpoint",
    "LiveSandboxService",
    "NewSandbox",
    "PoolMember",
    "SandboxPage",
    "SandboxPolicy",
    "image_auth_purpose",
]

MAX_METADATA = 64
"""Entries of one sandbox's metadata."""

MAX_TIMEOUT_SECONDS = 10**9
"""Longest timeout of any create, and the farthest that a renewal may reach from now: some 31 years."""

NODE_LABEL = "sandmill/node"
"""Every node has this label, with its id; what only one node can do asks for it."""

_ASKED_WRONGLY = ("VOLUME::", "SANDBOX::INVALID_PARAMETER")
"""Reasons of failures that no node is to blame for, by how they begin: what was asked for can never be."""

_NOT_YET = frozenset({WireState.PENDING, WireState.RESUMING})


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What the installation says about live sandboxes.

    cpu_request, memory_request: the part of its limits that a sandbox holds back on its node and of its tenant's
    quotas; most of them wait most of the time. start_seconds: from the request to the claim, and from the image being
    there to running. pull_seconds: for the image to come.
    max_timeout_seconds: of a create; None: any. caps: on what one may ask for.
    """

    default_runtime: str = "local"
    cpu_request: float = 0.1
    memory_request: float = 0.1
    start_seconds: float = 60.0
    pull_seconds: float = 1800.0
    max_timeout_seconds: int | None = None
    caps: SandboxCaps = DEFAULT_CAPS

    def reserved(self, resources: Resources) -> Reserved:
        """Give what a sandbox with these limits holds back."""
        return Reserved(
            cpu_millicores=max(10, round(resources.cpu_millicores * self.cpu_request)),
            memory_bytes=max(16 << 20, round(resources.memory_bytes * self.memory_request)),
        )


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """A sandbox to open, checked. image: as the client spelled it. auth: user name and password for its registry.

    timeout_seconds None: until it is deleted. node_labels: those its node must have.
    """

    spec: SessionSpec
    image: str | None
    entrypoint: tuple[str, ...]
    timeout_seconds: int | None
    runtime: str | None = None
    snapshot_id: UUID | None = None
    platform: Mapping[str, str] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, str] = field(default_factory=dict)
    renew_seconds: int | None = None
    auth: tuple[str, str] | None = None
    is_secure: bool = False
    node_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolMember:
    """Of which pool a sandbox is a member. is_warm: nobody has it yet. max_age_seconds: how long it waits for that."""

    pool: str
    pool_id: UUID
    revision: int
    is_warm: bool
    max_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """One page of a list, and how many there are in all."""

    items: Sequence[SandboxRow]
    total: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a delete met. node_id: that has to end it. is_over: nothing is left to wait for."""

    node_id: UUID | None
    is_over: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a port of a sandbox is. ingress_url: for this installation's own programs; address: for clients."""

    ingress_url: str
    address: str
    access_token: str
    is_secure: bool


class LiveSandboxService:
    """Live sandboxes of one tenant, inside the caller's transaction. Raises SandboxMissingError for those of others."""

    def __init__(
        self, connection: Connection, tenant_id: int, *, policy: SandboxPolicy, box: SecretBox, actor: str
    ) -> None:
        """box: seals passwords of registries. actor: who calls, for the history."""
        self._connection = connection
        self._tenant_id = tenant_id
        self._policy = policy
        self._box = box
        self._actor = actor
        self._sandboxes = LiveSandboxRepository(connection, tenant_id)
        self._room = QueueRoom(connection, tenant_id)
        self._keys = IdempotencyService(connection, tenant_id)
        self._waits = SandboxWaits(connection, tenant_id)

    def create(
        self, new: NewSandbox, sandbox_id: UUID, identity: RequestIdentity | None = None
    ) -> tuple[UUID, bool]:
        """Accept a sandbox; gives its id, and whether the same request made it before.

        Raises QuotaExceededError, WireInvalidError for a timeout or a limit beyond the installation's and for what no
        node could give it, IdempotencyConflictError, SnapshotMissingError, SnapshotStateError, NotSupportedError for
        registry credentials where nothing can be sealed.
        """
        earlier = self._keys.claim(identity, sandbox_id) if identity is not None else None
        if earlier is not None:
            return earlier, True
        self.check_timeout(new.timeout_seconds)
        if new.snapshot_id is not None:
            new = self._restored(new, new.snapshot_id)
        self._policy.caps.check_live(new.spec.resources)
        runtime = new.runtime or self._policy.default_runtime
        labels = labels_needed(
            self._connection,
            new.spec,
            runtime,
            is_named=new.runtime is not None,
            reserved=self._policy.reserved(new.spec.resources),
            others=new.node_labels,
        )
        if labels:
            new = replace(new, node_labels={**new.node_labels, **labels})
        self._room.refuse_early(1)
        self._sandboxes.insert(self._to_row(new, sandbox_id))
        self._room.hold(1)
        return sandbox_id, False

    def add_member(self, new: NewSandbox, sandbox_id: UUID, member: PoolMember) -> None:
        """Accept a sandbox of a warm pool. Raises QuotaExceededError: it waits in the queue like any other."""
        self._room.refuse_early(1)
        new = self._placed(new)
        row = replace(
            self._to_row(new, sandbox_id),
            pool=member.pool,
            pool_id=member.pool_id,
            pool_revision=member.revision,
            is_warm=member.is_warm,
            priority=WARM_PRIORITY if member.is_warm else 0,
        )
        if member.is_warm:
            # What it can use while it waits; the rest is added when it is taken.
            row = replace(row, max_cpu_seconds=row.cpu_millicores / 1000 * member.max_age_seconds)
        self._sandboxes.insert(row)
        self._room.hold(1)

    def _placed(self, new: NewSandbox) -> NewSandbox:
        """Ask for what a node must be able to do; where none can any more, the sandbox waits, and its pool says so."""
        if not asks_for_capabilities(new.spec):
            return new
        runtime = new.runtime or self._policy.default_runtime
        try:
            labels = capability_labels(
                NodeReadRepository(self._connection),
                new.spec,
                runtime,
                reserved=self._policy.reserved(new.spec.resources),
                others=new.node_labels,
            )
        except WireInvalidError:
            return new
        return replace(new, node_labels={**new.node_labels, **labels})

    def check_timeout(self, seconds: int | None) -> None:
        """Raise WireInvalidError for a timeout beyond the installation's."""
        most = self._policy.max_timeout_seconds
        if most is not None and seconds is not None and seconds > most:
            raise WireInvalidError(
                "SANDBOX::INVALID_PARAMETER",
                f"is {seconds} s; this installation allows {most}",
                field="timeout",
            )

    def get(self, sandbox_id: UUID) -> SandboxRow:
        """Look one up that the wire knows of; one that waits says for what."""
        return self._waits.told([visible(self._sandboxes.find(sandbox_id), sandbox_id)])[0]

    def record(self, sandbox_id: UUID) -> SandboxRow:
        """Look one up, also after its end; one that waits says for what."""
        return self._waits.told([self._require(sandbox_id)])[0]

    def events(self, sandbox_id: UUID, *, limit: int) -> list[SandboxEventRow]:
        """Its newest events, oldest first; also after its end."""
        self._require(sandbox_id)
        return self._sandboxes.events(sandbox_id, limit=limit)

    def page(
        self,
        *,
        states: Sequence[WireState] | None,
        metadata: Mapping[str, str] | None,
        page: int,
        page_size: int,
    ) -> SandboxPage:
        """List, newest first; those that wait say for what. page: from 1 on. states None: all."""
        items = self._waits.told(
            self._sandboxes.page(
                states=states, metadata=metadata, limit=page_size, offset=(page - 1) * page_size
            )
        )
        if page == 1 and len(items) < page_size:
            return SandboxPage(items, len(items))
        return SandboxPage(items, self._sandboxes.total(states=states, metadata=metadata))

    def patch_metadata(self, sandbox_id: UUID, patch: Mapping[str, str | None]) -> SandboxRow:
        """Set and delete entries; the patch is checked. RFC 7396: None deletes."""
        row = visible(self._sandboxes.lock(sandbox_id), sandbox_id)
        if not patch:
            return row
        merged = {**row.metadata, **patch}
        kept = {key: value for key, value in merged.items() if value is not None}
        if len(kept) > MAX_METADATA:
            raise WireInvalidError(
                "SANDBOX::INVALID_METADATA_LABEL",
                f"may have at most {MAX_METADATA} entries",
                field="metadata",
            )
        changed = self._sandboxes.set_metadata(sandbox_id, kept)
        return row if changed is None else changed

    def renew(self, sandbox_id: UUID, expires_at: datetime) -> datetime:
        """Move the expiry, also to an earlier time.

        Raises WireInvalidError for the past and for what lies beyond MAX_TIMEOUT_SECONDS, WireConflictError.
        """
        row = visible(self._sandboxes.lock(sandbox_id), sandbox_id)
        # By the clock of the database, which ends what has expired.
        left = expires_at - self._sandboxes.now()
        if left <= timedelta(0):
            raise WireInvalidError("DOCKER::INVALID_EXPIRATION", "must be in the future", field="expiresAt")
        if left > timedelta(seconds=MAX_TIMEOUT_SECONDS):
            raise WireInvalidError(
                "DOCKER::INVALID_EXPIRATION",
                f"must be at most {MAX_TIMEOUT_SECONDS} s from now, as the timeout of a create",
                field="expiresAt",
            )
        if row.expires_at is None:
            raise WireConflictError(
                "DOCKER::INVALID_EXPIRATION",
                f"sandbox {sandbox_id} has no expiration: it was made without timeout",
            )
        if not self._sandboxes.renew(sandbox_id, expires_at, actor=self._actor):
            raise _wrong_state(row, "renewed", "Running or Paused")
        return expires_at

    def delete(self, sandbox_id: UUID) -> Deletion:
        """End it, whatever its state; again is no error, also after its end."""
        row = self._sandboxes.lock(sandbox_id)
        if row is None:
            raise SandboxMissingError(sandbox_id)
        if row.ended_at is not None:
            self._sandboxes.hide(sandbox_id)
            return Deletion(None, is_over=True)
        if row.state == WireState.STOPPING:
            return Deletion(row.node_id, is_over=False)
        wish = WishRow(
            WireState.STOPPING,
            "SANDBOX_DELETED",
            self._actor,
            end_reason="SANDBOX_DELETED",
            ended_by=self._actor,
        )
        self._sandboxes.wish(sandbox_id, wish)
        met = TrialEndingRepository(self._connection).end_trials([sandbox_id], session_end("SANDBOX_DELETED"))
        if all(trial.is_finished for trial in met):
            # No node has it, so there is nothing to wait for.
            self._sandboxes.end_deleted(sandbox_id)
            return Deletion(None, is_over=True)
        nodes = [trial.node_id for trial in met if trial.node_id is not None]
        return Deletion(nodes[0] if nodes else None, is_over=False)

    def pause(self, sandbox_id: UUID) -> UUID | None:
        """Wish that it stands still; gives the node. Raises SandboxStateError."""
        row = visible(self._sandboxes.lock(sandbox_id), sandbox_id)
        if row.state != WireState.RUNNING:
            raise _wrong_state(row, "paused", "Running")
        return self._sandboxes.wish(sandbox_id, WishRow(WireState.PAUSING, "SANDBOX_PAUSING", self._actor))

    def resume(self, sandbox_id: UUID) -> UUID | None:
        """Wish that it goes on; gives the node. Raises SandboxStateError."""
        row = visible(self._sandboxes.lock(sandbox_id), sandbox_id)
        if row.state != WireState.PAUSED:
            raise _wrong_state(row, "resumed", "Paused", code="DOCKER::SANDBOX_NOT_PAUSED")
        return self._sandboxes.wish(sandbox_id, WishRow(WireState.RESUMING, "SANDBOX_RESUMING", self._actor))

    def started(self, sandbox_id: UUID) -> tuple[SandboxRow, Endpoint | None]:
        """Look one up, also after its end; and say where its ports are, if it runs."""
        placed = self._sandboxes.find_with_ingress(sandbox_id)
        if placed is None:
            raise SandboxMissingError(sandbox_id)
        row = placed.sandbox
        runs = row.state == WireState.RUNNING and not placed.has_expired
        return row, _endpoint_of(placed) if runs else None

    def endpoint(self, sandbox_id: UUID) -> Endpoint:
        """Say where its ports are. Raises EndpointNotReadyError before it runs, WireConflictError, WireFailureError."""
        placed = self._sandboxes.find_with_ingress(sandbox_id)
        row = visible(None if placed is None else placed.sandbox, sandbox_id)
        if row.state in _NOT_YET:
            raise EndpointNotReadyError(sandbox_id, row.state)
        if row.state == WireState.FAILED:
            raise _failed(row)
        # What has expired is reached no more by any way, though its end may not have been written yet.
        is_over = row.ended_at is not None or (placed is not None and placed.has_expired)
        if row.node_id is None or is_over or row.state == WireState.STOPPING:
            raise _wrong_state(row, "reached", "Running or Paused", code="DOCKER::SANDBOX_NOT_RUNNING")
        endpoint = None if placed is None else _endpoint_of(placed)
        if endpoint is None:
            raise WireFailureError(
                "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE",
                "no ingress runs on the sandbox's node: start one with 'sandmill-server ingress'",
            )
        return endpoint

    def _require(self, sandbox_id: UUID) -> SandboxRow:
        row = self._sandboxes.find(sandbox_id)
        if row is None:
            raise SandboxMissingError(sandbox_id)
        return row

    def _restored(self, new: NewSandbox, snapshot_id: UUID) -> NewSandbox:
        """Let a sandbox start from a snapshot, where that is. Its variables come along, as they do in a container."""
        row = SnapshotRepository(self._connection, self._tenant_id).hold(snapshot_id)
        if row is None:
            raise SnapshotMissingError(snapshot_id)
        if row.state != SnapshotState.READY:
            why = f": {row.state_message}" if row.state_message else ""
            raise SnapshotStateError(
                "SNAPSHOT::NOT_READY",
                f"snapshot {snapshot_id} is {row.state}{why}; it has to be Ready to start a sandbox from it",
            )
        if new.runtime not in (None, row.runtime):
            raise _bad_restore(f"was made by the runtime {row.runtime}, and {new.runtime} cannot start it")
        if new.platform is not None and row.platform not in (None, new.platform):
            raise _bad_restore(f"is of the platform {_spelled(row.platform)}, not {_spelled(new.platform)}")
        spec = replace(new.spec, image=f"snapshot:{row.runtime_name}", env={**row.env, **new.spec.env})
        labels = {**new.node_labels, NODE_LABEL: str(row.node_id)}
        return replace(new, spec=spec, runtime=row.runtime, node_labels=labels)

    def _to_row(self, new: NewSandbox, sandbox_id: UUID) -> NewSandboxRow:
        policy = self._policy
        start_seconds = policy.start_seconds + policy.pull_seconds
        timeouts = replace(new.spec.timeouts, queue=policy.start_seconds, start=start_seconds)
        spec = replace(new.spec, timeouts=timeouts)
        resources = spec.resources
        body = spec.to_json()
        auth = None
        if new.auth is not None:
            auth = self._box.seal("\0".join(new.auth).encode(), purpose=image_auth_purpose(sandbox_id))
        reserved = policy.reserved(resources)
        cpu = reserved.cpu_millicores
        return NewSandboxRow(
            id=sandbox_id,
            batch_id=new_id(),
            job_id=new_id(),
            digest=spec.digest,
            spec=to_jsonb(body),
            runtime=new.runtime or policy.default_runtime,
            cpu_millicores=cpu,
            memory_bytes=reserved.memory_bytes,
            gpu=resources.gpu,
            node_labels=new.node_labels,
            max_cpu_seconds=cpu / 1000 * (new.timeout_seconds or 0),
            queue_seconds=spec.timeouts.queue,
            image=new.image,
            snapshot_id=new.snapshot_id,
            entrypoint=new.entrypoint,
            platform=new.platform,
            metadata=new.metadata,
            extensions=new.extensions,
            pool=None,
            timeout_seconds=new.timeout_seconds,
            renew_seconds=new.renew_seconds,
            image_auth=auth,
            access_token=secrets.token_urlsafe(24),
            is_secure=new.is_secure,
            traceparent=current_traceparent(),
            actor=self._actor,
        )


def image_auth_purpose(sandbox_id: UUID) -> str:
    """Say what sealed registry credentials are for, so that those of one sandbox open no other's."""
    return f"image-auth/{sandbox_id}"


def _bad_restore(message: str) -> SnapshotStateError:
    return SnapshotStateError("SNAPSHOT::INVALID_RESTORE_CONFIG", f"snapshotId: the snapshot {message}")


def _spelled(platform: Mapping[str, str] | None) -> str:
    return "/".join((platform or {}).get(part, "?") for part in ("os", "arch"))


def _endpoint_of(placed: PlacedSandbox) -> Endpoint | None:
    url, address = placed.ingress_url, placed.ingress_address
    if url is None or address is None:
        return None
    return Endpoint(url, address, placed.sandbox.access_token, placed.sandbox.is_secure)


def _failed(row: SandboxRow) -> WireFailureError | WireInvalidError | SandboxStateError:
    """Say of one that has failed why: to those who wait for its start, and to those who had it."""
    message = f"sandbox {row.id} has failed: {row.state_message or row.state_reason}"
    if row.running_at is not None:
        return SandboxStateError("DOCKER::SANDBOX_NOT_RUNNING", message)
    reason = row.state_reason or ""
    if reason.startswith(_ASKED_WRONGLY):
        return WireInvalidError(reason, message)
    return WireFailureError(
        reason if reason.startswith("DOCKER::") else "DOCKER::SANDBOX_START_FAILED", message
    )


def _wrong_state(
    row: SandboxRow, verb: str, needed: str, *, code: str = "DOCKER::SANDBOX_NOT_RUNNING"
) -> SandboxStateError:
    return SandboxStateError(
        code, f"sandbox {row.id} is {row.state} and cannot be {verb}: it has to be {needed}"
    )
