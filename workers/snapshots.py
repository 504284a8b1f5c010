"""Makes and removes this node's snapshots, and holds the list of them against what the runtimes have."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy import Engine

from core.errors import SandmillError
from core.failpoints import failpoint
from core.logging import get_logger
from models.snapshots import SnapshotState
from repositories.snapshot_keeping import SnapshotKeepingRepository, SnapshotOrder
from runtimes.base import Runtime, SandboxHandle
from services.snapshots import is_of_node

__all__ = ["SnapshotKeeper"]

log = get_logger(__name__)

_RETRY_SECONDS = 5.0
"""Between two tries of what has failed on our side: of the database's, or of the engine's at a removal."""

_FAILED = "snapshot_runtime_failed"


class SnapshotKeeper:
    """Snapshots of one node. Thread-safe; each is worked on by one thread at a time."""

    def __init__(
        self,
        statements: Engine,
        runtimes: Mapping[str, Runtime],
        *,
        node_id: UUID,
        tell: Callable[[UUID], None],
    ) -> None:
        """statements: commits each by itself. tell: called with a snapshot's id after each change."""
        self._statements = statements
        self._runtimes = runtimes
        self._node_id = node_id
        self._actor = f"worker:{node_id}"
        self._tell = tell
        self._lock = threading.Lock()
        self._busy: set[UUID] = set()
        self._retry_at: dict[UUID, float] = {}

    def orders(self) -> list[SnapshotOrder]:
        """What is to be made and removed here, and is not being worked on, oldest first."""
        with self._statements.connect() as connection:
            orders = SnapshotKeepingRepository(connection).orders(self._node_id)
        now = time.monotonic()
        with self._lock:
            known = {order.id for order in orders}
            self._retry_at = {key: at for key, at in self._retry_at.items() if key in known}
            return [
                order
                for order in orders
                if order.id not in self._busy and self._retry_at.get(order.id, 0.0) <= now
            ]

    def make(self, order: SnapshotOrder, runtime: Runtime, handle: SandboxHandle) -> None:
        """Make one of a sandbox that is here. One that an earlier process has made whole is taken as it is."""
        with self._working(order) as is_mine:
            if is_mine:
                self._make(order, runtime, handle)

    def make_all(self, sandbox_id: UUID, runtime: Runtime, handle: SandboxHandle) -> None:
        """Make what was asked for of a sandbox before its end was; call it before the sandbox goes."""
        with self._statements.connect() as connection:
            orders = SnapshotKeepingRepository(connection).orders_of(sandbox_id)
        for order in orders:
            self.make(order, runtime, handle)

    def settle(self, order: SnapshotOrder) -> None:
        """Say how it is with one whose sandbox is over: whole if it got so far, else failed."""
        with self._working(order) as is_mine:
            runtime = self._runtimes.get(order.runtime) if is_mine else None
            if not is_mine:
                return
            if runtime is not None and order.runtime_name in runtime.snapshots():
                self._write_ready(order, runtime)
            else:
                self._write_failed(order, "its sandbox ended before the snapshot was made")

    def remove(self, order: SnapshotOrder) -> None:
        """Remove a deleted one; if that fails it is tried again later."""
        with self._working(order) as is_mine:
            if not is_mine:
                return
            try:
                runtime = self._runtimes.get(order.runtime)
                if runtime is None:
                    self._note(order, f"this node does not offer the runtime {order.runtime} any more")
                    return
                runtime.remove_snapshot(order.runtime_name)
            except SandmillError as error:
                log.warning("snapshot_not_removed", snapshot_id=str(order.id), error=error.message)
                self._note(order, error.message)
                return
            failpoint("snapshot.removed")
            with self._statements.connect() as connection:
                SnapshotKeepingRepository(connection).forget(order.id)
            log.info("snapshot_removed", snapshot_id=str(order.id))
        self._tell(order.id)

    def reconcile(self) -> None:
        """Remove snapshots that no row knows, and mark rows whose snapshot is gone. Raises what the runtimes raise."""
        for name, runtime in self._runtimes.items():
            # Looked up before and after: what is made or removed meanwhile is neither lost nor left over.
            before = self._kept(name)
            there = {each for each in runtime.snapshots() if is_of_node(each, self._node_id)}
            after = self._kept(name)
            for left in sorted(there - after.keys()):
                runtime.remove_snapshot(left)
                log.info("snapshot_leftover_removed", snapshot=left, runtime=name)
            for lost, snapshot_id in before.items():
                if lost not in there and snapshot_id is not None:
                    self._write_lost(snapshot_id)

    def _make(self, order: SnapshotOrder, runtime: Runtime, handle: SandboxHandle) -> None:
        try:
            if order.runtime_name not in runtime.snapshots():
                failpoint("snapshot.before_make")
                runtime.snapshot(handle, order.runtime_name)
        except SandmillError as error:
            self._write_failed(order, error.message)
            return
        except Exception as error:
            log.exception("snapshot_not_made", snapshot_id=str(order.id))
            self._write_failed(order, f"{type(error).__name__}: {error}")
            return
        failpoint("snapshot.made")
        self._write_ready(order, runtime)

    def _write_ready(self, order: SnapshotOrder, runtime: Runtime) -> None:
        size = runtime.snapshot_bytes(order.runtime_name)
        with self._statements.connect() as connection:
            SnapshotKeepingRepository(connection).mark_ready(order.id, size_bytes=size, actor=self._actor)
        log.info("snapshot_made", snapshot_id=str(order.id), bytes=size)
        self._tell(order.id)

    def _write_failed(self, order: SnapshotOrder, message: str) -> None:
        with self._statements.connect() as connection:
            SnapshotKeepingRepository(connection).mark_failed(
                order.id, reason=_FAILED, message=message, actor=self._actor
            )
        log.warning("snapshot_failed", snapshot_id=str(order.id), error=message)
        self._tell(order.id)

    def _write_lost(self, snapshot_id: UUID) -> None:
        with self._statements.connect() as connection:
            is_lost = SnapshotKeepingRepository(connection).mark_failed(
                snapshot_id,
                reason="snapshot_runtime_missing_image",
                message="its node does not have it any more: somebody removed it, or the node was set up anew",
                actor=self._actor,
                was=SnapshotState.READY,
            )
        if is_lost:
            log.warning("snapshot_lost", snapshot_id=str(snapshot_id))
            self._tell(snapshot_id)

    def _note(self, order: SnapshotOrder, message: str) -> None:
        with self._lock:
            self._retry_at[order.id] = time.monotonic() + _RETRY_SECONDS
        with self._statements.connect() as connection:
            SnapshotKeepingRepository(connection).note_not_removed(order.id, message)
        self._tell(order.id)

    def _kept(self, runtime: str) -> dict[str, UUID | None]:
        """Names of what the rows say is here; with the id of those that are whole."""
        with self._statements.connect() as connection:
            rows = SnapshotKeepingRepository(connection).kept(self._node_id)
        return {
            row.runtime_name: row.id if row.state == SnapshotState.READY else None
            for row in rows
            if row.runtime == runtime
        }

    @contextmanager
    def _working(self, order: SnapshotOrder) -> Iterator[bool]:
        """Be the only one at it; False: somebody is already. What is raised counts as a try that failed."""
        with self._lock:
            if order.id in self._busy:
                is_mine = False
            else:
                is_mine = True
                self._busy.add(order.id)
        if not is_mine:
            yield False
            return
        try:
            yield True
        except BaseException:
            with self._lock:
                self._retry_at[order.id] = time.monotonic() + _RETRY_SECONDS
            raise
        finally:
            with self._lock:
                self._busy.discard(order.id)
