"""Snapshots of one tenant: ask for one, look, list, let go. The node that has the sandbox does what is wished here."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from core.errors import QuotaExceededError
from models.live_sandboxes import WireState
from models.snapshots import SnapshotState
from repositories.live_sandboxes import LiveSandboxRepository
from repositories.nodes import NodeReadRepository
from repositories.snapshots import NewSnapshotRow, SnapshotFilter, SnapshotRepository, SnapshotRow
from services.idempotency import IdempotencyService, RequestIdentity
from services.node_capabilities import may_make_snapshots
from services.sandbox_errors import (
    SandboxStateError,
    SnapshotMissingError,
    SnapshotStateError,
    WireUnsupportedError,
)
from services.visible_sandboxes import visible

__all__ = [
    "LIVE_SNAPSHOT_PREFIX",
    "SnapshotPage",
    "SnapshotService",
    "TooManySnapshotsError",
    "is_of_node",
    "snapshot_name",
]

_OF_THE_WIRE = "wire-"

LIVE_SNAPSHOT_PREFIX = f"snapshot:{_OF_THE_WIRE}"
"""Of the images by which runtimes know snapshots of live sandboxes, whoever they belong to."""

_SOURCES = frozenset({WireState.RUNNING, WireState.PAUSED})


class TooManySnapshotsError(QuotaExceededError):
    """The tenant has as many snapshots as it may."""

    code = "SNAPSHOT::QUOTA_EXCEEDED"

    def __init__(self, most: int) -> None:
        """most: how many it may have."""
        super().__init__(
            f"there are {most} snapshots already, as many as this installation keeps of one tenant: delete some, or "
            "have SANDMILL_MAX_SNAPSHOTS raised"
        )


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """One page of a list, and how many there are in all."""

    items: Sequence[SnapshotRow]
    total: int


class SnapshotService:
    """Snapshots of one tenant, inside the caller's transaction. Raises SnapshotMissingError for those of others."""

    def __init__(self, connection: Connection, tenant_id: int, *, most: int, actor: str) -> None:
        """most: how many the tenant may have. actor: who calls, for the history."""
        self._most = most
        self._actor = actor
        self._snapshots = SnapshotRepository(connection, tenant_id)
        self._sandboxes = LiveSandboxRepository(connection, tenant_id)
        self._nodes = NodeReadRepository(connection)
        self._keys = IdempotencyService(connection, tenant_id)

    def create(
        self,
        sandbox_id: UUID,
        snapshot_id: UUID,
        *,
        name: str | None,
        identity: RequestIdentity | None = None,
    ) -> tuple[SnapshotRow, bool]:
        """Ask for a snapshot of a sandbox that runs or stands still; gives it, and whether the same request made it.

        Raises SandboxMissingError, SandboxStateError, TooManySnapshotsError, IdempotencyConflictError, and
        WireUnsupportedError where its node can make none.
        """
        source = visible(self._sandboxes.lock(sandbox_id), sandbox_id)
        earlier = self._keys.claim(identity, snapshot_id) if identity is not None else None
        if earlier is not None:
            return self.get(earlier), True
        if source.state not in _SOURCES or source.node_id is None:
            raise SandboxStateError(
                "SNAPSHOT::INVALID_SOURCE_STATE",
                f"sandbox {sandbox_id} is {source.state}: it has to be Running or Paused for a snapshot",
            )
        if not may_make_snapshots(self._nodes.labels_of(source.node_id), source.runtime or ""):
            raise WireUnsupportedError(
                "SNAPSHOT::NOT_IMPLEMENTED",
                f"the node of sandbox {sandbox_id} cannot make snapshots with the runtime {source.runtime}: run its "
                "worker as root with the usual SANDMILL_LOCAL_EXECUTOR, or use the runtime docker",
            )
        self._snapshots.lock_count()
        if self._snapshots.count(limit=self._most) >= self._most:
            raise TooManySnapshotsError(self._most)
        row = NewSnapshotRow(
            id=snapshot_id,
            sandbox_id=sandbox_id,
            name=name,
            runtime_name=snapshot_name(source.node_id, snapshot_id),
            created_by=self._actor,
        )
        self._snapshots.insert(row)
        return self.get(snapshot_id), False

    def get(self, snapshot_id: UUID) -> SnapshotRow:
        """Look one up."""
        row = self._snapshots.find(snapshot_id)
        if row is None:
            raise SnapshotMissingError(snapshot_id)
        return row

    def page(self, wanted: SnapshotFilter, *, page: int, page_size: int) -> SnapshotPage:
        """List, newest first. page: from 1 on."""
        items = self._snapshots.page(wanted, limit=page_size, offset=(page - 1) * page_size)
        if page == 1 and len(items) < page_size:
            return SnapshotPage(items, len(items))
        return SnapshotPage(items, self._snapshots.total(wanted))

    def delete(self, snapshot_id: UUID) -> SnapshotRow:
        """Let one go; gives it as it was. Again is no error while it goes. Raises SnapshotStateError while it is made.

        Sandboxes that were started from it go on.
        """
        row = self._snapshots.lock(snapshot_id)
        if row is None:
            raise SnapshotMissingError(snapshot_id)
        if row.state == SnapshotState.CREATING:
            raise SnapshotStateError(
                "SNAPSHOT::INVALID_STATE",
                f"snapshot {snapshot_id} is still being made: delete it once it is Ready or Failed",
            )
        if row.state != SnapshotState.DELETING:
            self._snapshots.delete(snapshot_id, actor=self._actor)
        return row


def snapshot_name(node_id: UUID, snapshot_id: UUID) -> str:
    """Give what the runtime calls a snapshot: whose node has it shows, since several may share one engine."""
    return f"{_prefix(node_id)}{snapshot_id}"


def is_of_node(name: str, node_id: UUID) -> bool:
    """Whether a runtime's snapshot is one that this node made for the wire."""
    return name.startswith(_prefix(node_id))


def _prefix(node_id: UUID) -> str:
    return f"{_OF_THE_WIRE}{node_id.hex}-"
