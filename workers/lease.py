"""The session lease: renewed on a thread and a connection of its own, so that no work can hold it up."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.failpoints import failpoint
from core.ids import new_id
from core.logging import get_logger
from core.metrics import HEARTBEATS
from repositories.sessions import HeldAttempt, SessionRepository
from services.attempt_control import StopReason
from services.attempt_progress import boot_seconds
from services.lost_attempts import give_back_orphan
from workers.registry import AttemptRegistry

__all__ = ["LeaseKeeper", "LeaseTimes", "NodeDescription"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; see the settings of the same names."""

    lease: float
    margin: float
    heartbeat: float


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What this worker offers."""

    id: UUID
    name: str
    runtimes: tuple[str, ...]
    cpu_millicores: int
    memory_bytes: int
    slots: int
    pid: int
    version: str
    gpu: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    boot_id: str | None = None
    ingress_address: str | None = None
    ingress_url: str | None = None


class LeaseKeeper:
    """Opens the session, keeps its lease, brings the user's wishes, and lets go when the lease is lost."""

    def __init__(
        self,
        engine: Engine,
        node: NodeDescription,
        registry: AttemptRegistry,
        times: LeaseTimes,
        *,
        on_beat: Callable[[], None],
        on_lease: Callable[[UUID, float], None] = lambda *_: None,
    ) -> None:
        """engine: with a pool of one, used by this object alone. on_beat: called after each good beat.

        on_lease: called with the session, and the time until which it certainly holds (`boot_seconds`), each time this
        changes, from `start` on.
        """
        self._engine = engine
        self._node = node
        self._registry = registry
        self._times = times
        self._on_beat = on_beat
        self._on_lease = on_lease
        self._rng = Random()  # noqa: S311 -- jitter of retries
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.session_id: UUID = new_id()
        self._good_until = 0.0
        self._lease_until = 0.0
        self._beats = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._watch = threading.Thread(target=self._run_watch, name="lease-watch", daemon=True)

    @property
    def valid(self) -> bool:
        """Whether the lease certainly holds: by our own clock, with the margin taken off."""
        return boot_seconds() < self._good_until

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels with which sessions are opened."""
        return self._node.labels

    def relabel(self, labels: Mapping[str, str]) -> None:
        """Have the node other labels at the next session; those of the present one are the caller's to write."""
        self._node = replace(self._node, labels=labels)

    def open(self) -> None:
        """Open the first session; it is not kept up before `start`. Raises what the database raises."""
        self._open()

    def start(self) -> None:
        """Keep the session up from now on; it is opened if it was not."""
        if not self._good_until:
            self._open()
        self._tell()
        self._beats.start()
        self._watch.start()

    def beat_soon(self) -> None:
        """Look for wishes now rather than at the next beat."""
        self._wake.set()

    def drain(self) -> None:
        """Ask the scheduler for no more attempts."""
        with self._engine.begin() as connection:
            SessionRepository(connection).drain(self.session_id)

    def leave(self) -> None:
        """Renew the lease once more and ask for no more attempts: whoever comes next has all its time to take over."""
        asked = boot_seconds()
        with self._engine.begin() as connection:
            sessions = SessionRepository(connection)
            sessions.drain(self.session_id)
            renewed = sessions.renew(self.session_id, lease_seconds=self._times.lease)
        if renewed:
            self._note_lease(asked)
            self._tell()

    def stop(self) -> None:
        """End the threads and the session."""
        self._stopping.set()
        self._wake.set()
        self._beats.join(timeout=10)
        try:
            with self._engine.begin() as connection:
                SessionRepository(connection).end(self.session_id, reason="stopped")
        finally:
            self._engine.dispose()

    def _open(self) -> None:
        node = self._node
        session_id = new_id()
        # Read before sending: a slow reply must not make the lease look longer than it is.
        asked = boot_seconds()
        with self._engine.begin() as connection:
            SessionRepository(connection).open(
                session_id,
                node.id,
                name=node.name,
                runtimes=node.runtimes,
                cpu_millicores=node.cpu_millicores,
                memory_bytes=node.memory_bytes,
                slots=node.slots,
                pid=node.pid,
                version=node.version,
                lease_seconds=self._times.lease,
                gpu=node.gpu,
                labels=node.labels,
                boot_id=node.boot_id,
                ingress_address=node.ingress_address,
                ingress_url=node.ingress_url,
            )
        self.session_id = session_id
        self._note_lease(asked)
        log.info("session_opened", session_id=str(session_id), node_id=str(node.id))

    def _note_lease(self, asked: float) -> None:
        # With the time the machine slept: the database's clock went on.
        self._good_until = asked + self._times.lease - self._times.margin
        # This process comes first; whoever watches it has the second half of the margin.
        self._lease_until = self._good_until + self._times.margin / 2

    def _tell(self) -> None:
        self._on_lease(self.session_id, self._lease_until)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._times.heartbeat)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._beat()
            except SQLAlchemyError as error:
                HEARTBEATS.labels("failed").inc()
                log.warning("heartbeat_failed", error=str(error).splitlines()[0])
            except Exception:
                HEARTBEATS.labels("failed").inc()
                log.exception("heartbeat_broken")

    def _beat(self) -> None:
        failpoint("heartbeat.before")
        asked = boot_seconds()
        # Taken before the database is asked: what is claimed in between is not mistaken for lost.
        ours = self._registry.claimed()
        with self._engine.begin() as connection:
            repository = SessionRepository(connection)
            renewed = repository.renew(self.session_id, lease_seconds=self._times.lease)
            held = repository.held(self.session_id) if renewed else []
        failpoint("heartbeat.after")
        if not renewed:
            HEARTBEATS.labels("lost").inc()
            log.warning("session_lost", session_id=str(self.session_id))
            self._registry.stop_all(StopReason.DISOWNED)
            self._open()
            self._tell()
            return
        self._note_lease(asked)
        self._tell()
        HEARTBEATS.labels("ok").inc()
        self._compare(held, ours)
        self._on_beat()

    def _compare(self, held: list[HeldAttempt], ours: Mapping[tuple[UUID, int], object]) -> None:
        """Bring the database's view and what runs here together."""
        listed = {(attempt.trial_id, attempt.fence) for attempt in held}
        running = self._registry.claimed()
        for attempt in held:
            control = running.get((attempt.trial_id, attempt.fence))
            if control is None:
                self._report_orphan(attempt)
            elif attempt.desired == "cancel":
                force = attempt.cancel_mode == "force"
                control.request(StopReason.FORCE_CANCEL if force else StopReason.CANCEL)
            elif attempt.desired == "preempt":
                control.request(StopReason.PREEMPT)
        for key, control in running.items():
            if key in ours and key not in listed:
                log.warning("attempt_not_ours", trial_id=str(key[0]), fence=key[1])
                control.request(StopReason.DISOWNED)

    def _report_orphan(self, attempt: HeldAttempt) -> None:
        """The database says we run it, and nobody here does: a reply was lost. Give it back.

        An attempt this worker is just entering or leaving is left for the next beat to judge.
        """
        if self._registry.contains(attempt.trial_id, attempt.fence):
            return
        with self._engine.begin() as connection:
            given_back = give_back_orphan(
                connection, attempt.trial_id, attempt.fence, session_id=self.session_id, rng=self._rng
            )
        if given_back:
            log.warning("orphan_given_back", trial_id=str(attempt.trial_id), fence=attempt.fence)

    def _run_watch(self) -> None:
        """Kill what runs here before anybody else may start it, even if the heartbeat hangs in a call."""
        while not self._stopping.is_set():
            time.sleep(0.25)
            try:
                self._registry.check_deadlines()
                if not self.valid and self._registry.stop_all(StopReason.DISOWNED):
                    log.error("lease_lapsed", session_id=str(self.session_id))
            except Exception:
                # The last line of defence does not fall over one sandbox that will not die.
                log.exception("lease_watch_failed")
