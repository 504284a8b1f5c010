"""One worker: claims attempts for its node, runs them, keeps its lease. Celery only brings the bells."""

import importlib.metadata
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID

import redis
from sqlalchemy.exc import SQLAlchemyError

from core.blobstore import BlobStore
from core.build import source_digest
from core.config import Settings
from core.database import create_database_engine
from core.errors import RunFailure
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import ATTEMPTS_RUNNING, BELLS, LEAKED, LEFTOVERS
from core.sealing import make_box
from repositories.attempts import AttemptRepository, ClaimedAttempt
from repositories.sessions import SessionRepository
from runtimes.base import Runtime, SandboxHandle, own_platform
from runtimes.processes import ProcessRef
from runtimes.raw_engine import engine_socket
from runtimes.registry import CGROUP_PARENT, local_state
from services.attempt_control import AttemptControl, StopReason
from services.attempt_journal import AttemptJournal
from services.attempt_runner import AttemptRunner, WorkerParts
from services.attempt_writes import AttemptStatements
from services.live_log import LivePublisher
from services.live_sandboxes import NODE_LABEL
from services.log_pump import LogWriter
from services.node_capabilities import labels_of_capabilities, told_of
from services.regrades import Regrader
from services.runtime_offers import PLATFORM_LABEL
from services.seen_images import SeenImages
from services.wake import CANCEL_CHANNEL, Wake
from workers.identity import NodeIdentity, boot_id
from workers.lease import LeaseKeeper, LeaseTimes, NodeDescription
from workers.lease_file import Lease, LeaseFile
from workers.registry import AttemptRegistry
from workers.regrading import RegradeLoop
from workers.sessions import SessionKeeper, is_session
from workers.watchdog import Facts
from workers.watching import WatchdogKeeper

__all__ = ["NodeWorker"]

log = get_logger(__name__)

_SWEEP_SECONDS = 20.0
_HAND_OVER_SECONDS = 10.0

_GROUP_LOCK_SECONDS = 0.1
"""For how long statements about several attempts wait for somebody who holds one of the rows, such as a cancel."""


class NodeWorker:
    """Everything a worker process holds. Built once, started, stopped."""

    def __init__(self, settings: Settings, identity: NodeIdentity, runtimes: Mapping[str, Runtime]) -> None:
        """runtimes: by name, checked to work on this host. Connects to nothing yet."""
        self._settings = settings
        self._identity = identity
        self._runtimes = runtimes
        database_url = settings.database_url.get_secret_value()
        redis_url = settings.redis_url.get_secret_value()
        actor = f"worker:{identity.id}"
        # Claims are decided by asking again and all other writes are repeated, so no ping is needed before each.
        self._engine = create_database_engine(
            database_url, actor=actor, pool_size=settings.worker_pool_size, pre_ping=False, by_key_only=True
        )
        self._statements = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._group_engine = create_database_engine(
            database_url,
            actor=actor,
            pool_size=3,
            pre_ping=False,
            by_key_only=True,
            lock_timeout_seconds=_GROUP_LOCK_SECONDS,
        )
        self._attempts = AttemptStatements(self._engine, self._group_engine, node_id=identity.id)
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=2, socket_connect_timeout=2)
        self._wake = Wake(Wake.connect(redis_url))
        self._registry = AttemptRegistry()
        self._images = SeenImages()
        self._lease = LeaseKeeper(
            create_database_engine(database_url, actor=actor, pool_size=1, statement_timeout_seconds=3.0),
            _describe(settings, identity.id, runtimes),
            self._registry,
            LeaseTimes(settings.lease_seconds, settings.lease_margin_seconds, settings.heartbeat_seconds),
            on_beat=self._after_beat,
            on_lease=self._note_lease,
        )
        folder = settings.home_path / "node"
        self._process = ProcessRef.of(os.getpid())
        self._lease_file = LeaseFile(folder)
        self._watchdog = WatchdogKeeper(folder, _facts(settings, identity.id, runtimes))
        self._journal = AttemptJournal(folder / "attempts")
        self._adopted: list[tuple[ClaimedAttempt, AttemptControl]] = []
        self._leaving = threading.Event()
        self._blobs = BlobStore(settings.home_path / "blobs")
        self._live_log = LivePublisher(self._redis)
        self._logs = LogWriter(self._engine, self._live_log.publish, node_id=identity.id)
        self._sessions = SessionKeeper(
            self._engine,
            self._attempts,
            runtimes,
            node_id=identity.id,
            box=make_box(settings),
            tell=self._wake.sandbox,
            tell_started=lambda sandbox: self._wake.sandbox(sandbox, started_on=identity.id),
            tell_pools=self._wake.pools,
            note_image=self._images.note,
            ready_seconds=settings.sandbox_start_timeout_seconds,
            on_end=self._leave,
        )
        self._runner = AttemptRunner(
            WorkerParts(
                statements=self._attempts,
                runtimes=runtimes,
                blobs=self._blobs,
                logs=self._logs,
                node_id=identity.id,
                log_cap_bytes=settings.log_cap_bytes,
                images=self._images,
                journal=self._journal,
                members=self._sessions.members,
            )
        )
        self._regrades = RegradeLoop(Regrader(self._engine, self._blobs))
        self._fallback = ThreadPoolExecutor(settings.worker_slots, thread_name_prefix="unrung")
        self._draining = False
        self._is_started = False
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._ended: deque[UUID] = deque()
        self._threads = [
            threading.Thread(target=self._listen_for_cancels, name="cancels", daemon=True),
            threading.Thread(target=self._report_ends, name="ends", daemon=True),
            threading.Thread(target=self._sweep, name="sweep", daemon=True),
        ]

    @property
    def node_id(self) -> UUID:
        """The id of this node."""
        return self._identity.id

    def note_canary(self) -> None:
        """Write that a bell came through, for operators to see."""
        with self._statements.connect() as connection:
            SessionRepository(connection).note_canary(self._lease.session_id)

    def start(self) -> None:
        """Open the session, take over what an earlier process of this node left running, and end the rest of it.

        In this order: as long as a sandbox of the old session runs, its trial must not start anywhere else. Until that
        is settled the old lease counts for the watchdog, which has ended all of it by then.
        """
        self._blobs.sweep()
        self._lease.open()
        self._adopt()
        self._remove_leftovers()
        with self._statements.connect() as connection:
            SessionRepository(connection).give_up_rest(self.node_id)
        self._journal.sweep([claimed.attempt_id for claimed, _ in self._adopted])
        self._lease.start()
        self._watchdog.ensure()
        self._live_log.start()
        self._logs.start()
        for thread in self._threads:
            thread.start()
        self._regrades.start()
        self._sessions.start()
        self._is_started = True
        self._run_adopted()

    def _adopt(self) -> None:
        """Take over in the database. May be repeated: what was taken then belongs to a session that has ended."""
        for claimed, _ in self._adopted:
            self._registry.leave(claimed.trial_id, claimed.fence)
        self._adopted = []
        with self._statements.connect() as connection:
            adopted = AttemptRepository(connection).adopt(
                session_id=self._lease.session_id,
                node_id=self.node_id,
                boot_id=boot_id(),
                runtimes=[name for name, runtime in self._runtimes.items() if runtime.outlives],
            )
        for claimed in adopted:
            control = self._registry.enter(claimed.trial_id, claimed.fence)
            if control is not None:
                control.given_sandbox = claimed.given_sandbox
                self._registry.mark_claimed(claimed.trial_id, claimed.fence)
                self._adopted.append((claimed, control))
        if adopted:
            log.info("attempts_adopted", count=len(adopted))

    def _run_adopted(self) -> None:
        session_id = self._lease.session_id
        for claimed, control in self._adopted:
            arguments = (claimed, session_id, control)
            threading.Thread(target=self._go_on, args=arguments, name="adopted", daemon=True).start()
        self._adopted = []
        # Bells may have come while nobody was here to answer. If this fails, they ring again.
        with suppress(SQLAlchemyError):
            self._take_unrung(age_seconds=0.0)

    def _go_on(self, claimed: ClaimedAttempt, session_id: UUID, control: AttemptControl) -> None:
        try:
            kept = self._execute(claimed, session_id, control, is_adopted=True)
        except BaseException:
            self._registry.leave(claimed.trial_id, claimed.fence)
            raise
        if not kept:
            self._leave(claimed)

    def _execute(
        self,
        claimed: ClaimedAttempt,
        session_id: UUID,
        control: AttemptControl,
        *,
        rung_by: str | None = None,
        is_adopted: bool = False,
    ) -> bool:
        """Run an attempt to its end, or a live sandbox to its start. True: it is kept and ends later."""
        if is_session(claimed):
            return self._sessions.take(claimed, session_id, control)
        with ATTEMPTS_RUNNING.track_inprogress():
            self._runner.run(claimed, session_id, control, rung_by=rung_by, is_adopted=is_adopted)
        return False

    def _leave(self, claimed: ClaimedAttempt) -> None:
        self._ended.append(claimed.attempt_id)
        self._registry.leave(claimed.trial_id, claimed.fence)
        self._finished.set()

    def hand_over(self) -> None:
        """End this process and leave what runs to the next one of this node. Does not return.

        What cannot be gone on with is given back to the queue; what cannot be left in the middle is waited for.
        """
        self._draining = True
        self._leaving.set()
        deadline = time.monotonic() + _HAND_OVER_SECONDS
        if self._is_started:
            try:
                self._lease.leave()
            except SQLAlchemyError as error:
                log.warning("drain_not_written", error=str(error).splitlines()[0])
        controls = self._registry.controls()
        lost = [control for control in controls if not control.is_kept]
        for control in lost:
            control.request(StopReason.SHUTDOWN)
        for control in controls:
            if control.is_kept:
                control.hold(max(0.0, deadline - time.monotonic()))
        while time.monotonic() < deadline and any(control in lost for control in self._registry.controls()):
            time.sleep(0.02)
        log.info("worker_handed_over", attempts=len(controls) - len(lost))
        # At once, and nothing is put in order: the next one goes on where this one stands, as after a kill.
        os._exit(0)

    def drain(self) -> None:
        """Take nothing new, and give what runs back to the queue."""
        self._draining = True
        if not self._is_started:
            return
        try:
            self._lease.drain()
        except SQLAlchemyError as error:
            log.warning("drain_not_written", error=str(error).splitlines()[0])
        stopped = self._registry.stop_all(StopReason.SHUTDOWN)
        log.info("worker_draining", attempts=stopped)

    def stop(self) -> None:
        """End the session and close everything."""
        if self._leaving.is_set():
            threading.Event().wait()  # `hand_over` ends this process
        self._stopping.set()
        self._finished.set()
        self._regrades.stop()
        self._sessions.stop()
        self._fallback.shutdown(wait=True, cancel_futures=True)
        if self._is_started:
            try:
                self._lease.stop()
            except SQLAlchemyError as error:
                log.warning("session_end_not_written", error=str(error).splitlines()[0])
            self._logs.stop()
            self._live_log.stop()
        for runtime in self._runtimes.values():
            runtime.close()
        self._watchdog.stop()
        self._engine.dispose()
        self._group_engine.dispose()
        self._identity.close()

    def run_attempt(self, trial_id: UUID, fence: int, *, rung_by: str | None = None) -> None:
        """Answer a bell: claim and run, or drop it if it is a duplicate, stale or recalled.

        rung_by: traceparent of the dispatch, where traces are on.
        """
        failpoint("worker.received")
        if self._draining or not self._is_started or not self._lease.valid:
            BELLS.labels("refused").inc()
            return
        control = self._registry.enter(trial_id, fence)
        if control is None:
            BELLS.labels("duplicate").inc()
            return
        kept = False
        try:
            session_id = self._lease.session_id
            failpoint("worker.before_claim")
            claimed = self._attempts.claim(trial_id, fence, session_id)
            if claimed is None:
                BELLS.labels("stale").inc()
                log.debug("bell_dropped", trial_id=str(trial_id), fence=fence)
                return
            self._registry.mark_claimed(trial_id, fence)
            failpoint("worker.after_claim")
            BELLS.labels("claimed").inc()
            kept = self._execute(claimed, session_id, control, rung_by=rung_by)
            if not kept:
                self._ended.append(claimed.attempt_id)
        finally:
            if not kept:
                self._registry.leave(trial_id, fence)
        failpoint("worker.before_ack")
        if not kept:
            # What goes on has made no room for others.
            self._finished.set()

    def _remove_leftovers(self) -> None:
        """Remove this node's sandboxes that no attempt here runs: of an earlier process, or such as would not go.

        And what went with sandboxes that are gone, such as volumes. What is left afterwards has leaked. What should be
        gone by its row and is not to be found, has never come to be, or its end could not be written.
        """
        for runtime in self._runtimes.values():
            ended = self._to_be_gone(
                runtime
            )  # looked up before: what is made meanwhile is not taken for gone
            there = runtime.list()
            for name in ended.difference(handle.name for handle in there):
                self._mark_swept(name)
            leftovers = [
                handle
                for handle in there
                if handle.labels.get("sandmill.node") == str(self.node_id) and not self._runs(handle)
            ]
            LEAKED.labels(runtime.name, "sandbox").set(
                sum(not self._remove_leftover(runtime, handle) for handle in leftovers)
            )
            self._collect(runtime)

    def _remove_leftover(self, runtime: Runtime, handle: SandboxHandle) -> bool:
        try:
            runtime.remove(handle)
        except RunFailure:
            # One that will not go now is no reason not to work: the next sweep tries again, and fences keep it from
            # counting.
            LEFTOVERS.labels(runtime.name, "failed").inc()
            log.exception("leftover_not_removed", sandbox=handle.name, runtime=runtime.name)
            return False
        self._mark_swept(handle.name)
        LEFTOVERS.labels(runtime.name, "removed").inc()
        log.info("leftover_removed", sandbox=handle.name, runtime=runtime.name)
        return True

    def _to_be_gone(self, runtime: Runtime) -> set[str]:
        with self._statements.connect() as connection:
            return set(SessionRepository(connection).ended_sandboxes(self.node_id, runtime.name))

    def _mark_swept(self, name: str) -> None:
        with self._statements.connect() as connection:
            SessionRepository(connection).mark_swept(name)

    def _collect(self, runtime: Runtime) -> None:
        try:
            removed, left = runtime.collect(str(self.node_id), ())
        except RunFailure as error:
            log.warning("rest_not_collected", runtime=runtime.name, error=error.message)
            return
        LEAKED.labels(runtime.name, "rest").set(left)
        if removed:
            log.info("rest_collected", runtime=runtime.name, count=removed)

    def _runs(self, handle: SandboxHandle) -> bool:
        """Whether it is wanted: by the attempt it was made for, or by one that it was given to."""
        trial, fence = handle.labels.get("sandmill.trial", ""), handle.labels.get("sandmill.fence", "")
        try:
            is_its_own = self._registry.contains(UUID(trial), int(fence))
        except ValueError:
            return False
        return is_its_own or self._registry.has_sandbox(handle.name)

    def _tell_capabilities(self) -> None:
        """Tell what this node can do, if it is something else than before: its engine may have been set up anew."""
        labels = _labels(self._settings, self.node_id, self._runtimes, before=self._lease.labels)
        if labels != self._lease.labels:
            with self._statements.connect() as connection:
                SessionRepository(connection).note_labels(self.node_id, labels)
            self._lease.relabel(labels)
            log.info("labels_changed", labels=labels)

    def _sweep(self) -> None:
        while not self._stopping.wait(_SWEEP_SECONDS):
            for sweep in (
                self._remove_leftovers,
                self._sessions.reconcile_snapshots,
                self._tell_capabilities,
            ):
                try:
                    sweep()
                except Exception:
                    log.exception("sweep_failed")

    def _publish_all(self, messages: Iterable[tuple[str, str]]) -> None:
        """Tell live readers. A lost message costs them a re-read of the store."""
        try:
            pipeline = self._redis.pipeline(transaction=False)
            for channel, message in messages:
                pipeline.publish(channel, message)
            pipeline.execute()
        except (redis.RedisError, OSError) as error:
            log.debug("messages_not_published", error=str(error))

    def _after_beat(self) -> None:
        self._watchdog.ensure()
        self._tell_images()
        self._take_unrung(age_seconds=2 * self._settings.rering_seconds)

    def _tell_images(self) -> None:
        """Tell the scheduler which images are at hand here, if they are others than before."""
        images = self._images.untold()
        if images is not None:
            with self._statements.connect() as connection:
                SessionRepository(connection).note_images(self.node_id, images)
            self._images.told(images)

    def _note_lease(self, session_id: UUID, until: float) -> None:
        process = self._process
        if process is not None:
            self._lease_file.write(Lease(boot_id(), str(session_id), until, process.pid, process.started))

    def _take_unrung(self, *, age_seconds: float) -> None:
        """Run what waits for this node though its bell was rung more than once.

        Redis is away, or its queue is spoilt: whatever it is, the table says what is to be done.
        """
        room = self._settings.worker_slots - (len(self._registry) - len(self._sessions))
        if self._draining or room <= 0:
            return
        with self._engine.begin() as connection:
            waiting = SessionRepository(connection).unclaimed(
                self.node_id, age_seconds=age_seconds, limit=room
            )
        for trial_id, fence in waiting:
            self._fallback.submit(self.run_attempt, trial_id, fence)

    def _report_ends(self) -> None:
        """Tell of all attempts that ended in the last few milliseconds: the scheduler once, their log readers each."""
        while not self._stopping.is_set():
            self._finished.wait()
            self._finished.clear()
            self._wake.scheduler()
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            self._publish_all((f"log:{attempt_id}", '{"closed": true}') for attempt_id in ended)
            self._stopping.wait(0.01)

    def _listen_for_cancels(self) -> None:
        """Cancels also come with the heartbeat; this only makes them faster."""
        while not self._stopping.is_set():
            try:
                with self._redis.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(CANCEL_CHANNEL.format(node_id=self.node_id))
                    while not self._stopping.is_set():
                        if channel.get_message(timeout=1.0) is not None:
                            self._lease.beat_soon()
                            self._sessions.wake()
            except (redis.RedisError, OSError):
                self._stopping.wait(1.0)


def _describe(settings: Settings, node_id: UUID, runtimes: Mapping[str, Runtime]) -> NodeDescription:
    # Most trials wait more than they compute; the sandbox's own limit keeps each to its share.
    cpu = settings.worker_cpu_millicores or 2000 * (os.cpu_count() or 1)
    memory = settings.worker_memory_bytes or _physical_memory_bytes() * 8 // 10
    return NodeDescription(
        id=node_id,
        name=socket.gethostname(),
        runtimes=tuple(sorted(runtimes)),
        cpu_millicores=cpu,
        memory_bytes=memory,
        slots=settings.worker_slots,
        gpu=settings.worker_gpu,
        labels=_labels(settings, node_id, runtimes, before={}),
        pid=os.getpid(),
        version=_version(),
        boot_id=boot_id(),
        ingress_address=settings.ingress_clients_address,
        ingress_url=settings.ingress_url,
    )


def _labels(
    settings: Settings, node_id: UUID, runtimes: Mapping[str, Runtime], *, before: Mapping[str, str]
) -> dict[str, str]:
    """Say by which labels this node is found. before: what it said last, and says on while an engine is away."""
    labels = dict(settings.worker_labels)
    for name, runtime in runtimes.items():
        try:
            labels |= labels_of_capabilities(name, runtime.capabilities())
        except RunFailure as error:
            log.warning("capabilities_not_known", runtime=name, error=error.message)
            labels |= told_of(before, name)
    # Last: nobody else's labels may stand for this node.
    return {**labels, PLATFORM_LABEL: own_platform(), NODE_LABEL: str(node_id)}


def _facts(settings: Settings, node_id: UUID, runtimes: Mapping[str, Runtime]) -> Facts:
    """Say what the watchdog has to look after."""
    folder = settings.home_path / "runtimes"
    docker = runtimes.get("docker")
    return Facts(
        node=str(node_id),
        build=source_digest("core", "runtimes", "workers"),
        local=str(local_state(folder)) if "local" in runtimes else None,
        cgroup_parent=CGROUP_PARENT,
        docker=engine_socket() if docker is not None else None,
    )


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version() -> str:
    try:
        return importlib.metadata.version("sandmill-server")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0+source"
