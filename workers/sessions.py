"""Keeps this node's live sandboxes: starts them, obeys what is wished of them, ends them. None holds a thread."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from core.errors import (
    EntrypointFailedError,
    RunFailure,
    RuntimeUnavailableError,
    SandmillError,
)
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import LIVE_SANDBOXES
from core.sealing import SecretBox
from models.snapshots import SnapshotState
from models.states import AttemptState
from repositories.attempts import AttemptRepository, ClaimedAttempt
from repositories.job_members import Member
from repositories.sandbox_outputs import WantedOutput
from repositories.session_keeping import SessionKeepingRepository, Wish
from repositories.sessions import SessionRepository
from repositories.snapshot_keeping import SnapshotOrder
from repositories.trial_ending import TrialEndingRepository
from runtimes.base import Runtime, SandboxHandle, SandboxStats
from services.attempt_control import AttemptControl, StopReason
from services.attempt_writes import AttemptStatements, AttemptWriter, DisownedError
from services.early_ends import session_end
from services.entrypoints import check_entrypoint
from services.session_endings import (
    SessionEnd,
    died,
    failed_start,
    silent,
    to_session_attempt_end,
    unknown_end,
    unswitched,
    wanted_end,
)
from services.session_spec import KIND, SessionSpec
from services.session_starting import (
    ProgressNotes,
    find_sandbox,
    member_key,
    remove_sandbox,
    start_sandbox,
    to_sandbox_spec,
)
from workers.outputs import Entrypoint, OutputKeeper
from workers.snapshots import SnapshotKeeper
from workers.spare_members import Spare, SpareMembers

__all__ = ["SessionKeeper", "is_session"]

log = get_logger(__name__)

_POLL_SECONDS = 1.0
"""Between two looks at wishes when nothing rings."""
_EXPIRY_SLACK_SECONDS = 5.0
"""The scheduler ends what has expired; so long after that the node does it by itself."""
_LOOK_SECONDS = 3.0
"""In so long all sandboxes are looked at once, whether they still run."""
_ACTIONS_AT_ONCE = 8


def is_session(claimed: ClaimedAttempt) -> bool:
    """Whether an attempt is a live sandbox."""
    return claimed.spec.get("kind") == KIND


@dataclass(slots=True)
class _Start:
    """A sandbox that is being made. is_given_up: its end is written, or being written, by a thread of the keeper.

    taken_at: when this worker took it, by the monotonic clock.

    A start cannot be called off: a pull takes what it takes. So one that nobody wants any more is ended without
    waiting for it, and whoever makes it takes away what comes of it.
    """

    claimed: ClaimedAttempt
    control: AttemptControl
    session_id: UUID
    taken_at: float = field(default_factory=time.monotonic)
    is_given_up: bool = False


@dataclass(slots=True)
class _Live:
    """A sandbox that runs here. is_busy: something is done about it now. session_id: under which it is held.

    taken_at: as of its start. is_held: it is about to be, or was, given to an attempt, which alone removes it then.
    """

    claimed: ClaimedAttempt
    control: AttemptControl
    session_id: UUID
    runtime: Runtime
    handle: SandboxHandle
    entrypoint: Entrypoint
    taken_at: float
    is_busy: bool = False
    is_held: bool = False
    is_paused: bool = False
    obeyed: int = -1
    looked_at: float = field(default_factory=time.monotonic)


class SessionKeeper:
    """All live sandboxes of one node; one thread looks after them, a few others act."""

    def __init__(
        self,
        engine: Engine,
        attempts: AttemptStatements,
        runtimes: Mapping[str, Runtime],
        *,
        node_id: UUID,
        box: SecretBox,
        tell: Callable[[UUID], None],
        on_end: Callable[[ClaimedAttempt], None],
        tell_started: Callable[[UUID], None] | None = None,
        ready_seconds: float = 60.0,
        tell_pools: Callable[[], None] = lambda: None,
        note_image: Callable[[str], None] = lambda _: None,
    ) -> None:
        """box: opens registry credentials. tell: called with a sandbox's id after each change, for those who wait.

        tell_started: called instead once somebody's sandbox runs. on_end: called when nothing of an attempt is left
        here. ready_seconds: of a start, once its image is there. tell_pools: called when an attempt was given a member.
        note_image: called with the image of each member that waits here for a job.
        """
        self._engine = engine
        self._attempts = attempts
        self._statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._runtimes = runtimes
        self._node_id = node_id
        self._actor = f"worker:{node_id}"
        self._box = box
        self._tell = tell
        self._tell_started = tell_started or tell
        self._on_end = on_end
        self._ready_seconds = ready_seconds
        self._note_image = note_image
        self.members = SpareMembers(tell=tell_pools)
        self._outputs = OutputKeeper(self._statements, node_id=node_id, tell=tell)
        self._snapshots = SnapshotKeeper(self._statements, runtimes, node_id=node_id, tell=tell)
        self._lock = threading.Lock()
        self._live: dict[UUID, _Live] = {}
        self._starting: dict[UUID, _Start] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._actions = ThreadPoolExecutor(_ACTIONS_AT_ONCE, thread_name_prefix="sandbox")
        self._thread = threading.Thread(target=self._run, name="sandboxes", daemon=True)
        self._expiry_at = 0.0

    def __len__(self) -> int:
        """How many are kept."""
        with self._lock:
            return len(self._live)

    def start(self) -> None:
        """Begin to look after them."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float = 30.0) -> None:
        """Let what was asked to stop end, then end the threads."""
        deadline = time.monotonic() + timeout_seconds
        if self._thread.is_alive():
            self.wake()
            while self._has_some() and time.monotonic() < deadline:
                time.sleep(0.02)
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._actions.shutdown(wait=True, cancel_futures=True)

    def wake(self) -> None:
        """Look now: something was wished, or an attempt was asked to stop."""
        self._wake.set()

    def reconcile_snapshots(self) -> None:
        """Hold what the rows say of this node's snapshots against what its runtimes have."""
        self._snapshots.reconcile()

    def take(self, claimed: ClaimedAttempt, session_id: UUID, control: AttemptControl) -> bool:
        """Bring a claimed or adopted sandbox to run. True: it is kept here from now on. Never raises."""
        writer = AttemptWriter(self._attempts, control)
        start = _Start(claimed, control, session_id)
        with self._lock:
            self._starting[claimed.trial_id] = start
        # A stop that comes while it is made reaches the keeper's thread, not this one.
        control.arm(self.wake)
        if claimed.desired == "cancel":
            # Asked for before anybody here could hear of it.
            control.request(StopReason.FORCE_CANCEL)
        try:
            return self._take(start, writer)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(claimed.trial_id), fence=claimed.fence)
        except Exception as error:
            log.exception("sandbox_not_taken", trial_id=str(claimed.trial_id), fence=claimed.fence)
            if self._settle(start):
                with suppress(DisownedError, SQLAlchemyError):
                    self._write_end(start, unknown_end(error), SandboxStats(), is_removed=False)
        finally:
            self._settle(start)
        return False

    def _settle(self, start: _Start) -> bool:
        """Take a start out of the keeper's sight. False: it was given up meanwhile."""
        with self._lock:
            if self._starting.get(start.claimed.trial_id) is start:
                del self._starting[start.claimed.trial_id]
            return not start.is_given_up

    def _take(self, start: _Start, writer: AttemptWriter) -> bool:
        claimed, control = start.claimed, start.control
        runtime = self._runtimes.get(claimed.runtime)
        control.is_kept = runtime is not None and runtime.outlives
        is_new = claimed.state == AttemptState.STARTING
        pool_id = None
        try:
            if is_new:
                handle, pool_id = self._make(start, writer, runtime)
            else:
                handle = find_sandbox(runtime, claimed)
        except SandmillError as error:
            self._fail(start, error, is_new=is_new)
            return False
        if runtime is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {claimed.runtime}")
        failpoint("session.after_create")
        if not self._settle(start):
            self._clear_away(runtime, handle)
            return False
        entrypoint = Entrypoint(_entrypoint_of(claimed))
        live = _Live(claimed, control, start.session_id, runtime, handle, entrypoint, start.taken_at)
        control.arm(lambda: self._kill(live))
        if not is_new:
            self._let_go_on(live, writer)
        try:
            if is_new:
                self._mark_running(live, writer)
        except BaseException:
            remove_sandbox(runtime, handle)
            raise
        failpoint("session.after_running")
        with self._lock:
            self._live[claimed.trial_id] = live
        LIVE_SANDBOXES.set(len(self))
        self._offer(live)
        if pool_id is None:
            self._tell_started(claimed.trial_id)
        else:
            self._tell(claimed.trial_id)
            self._tell(pool_id)  # for those who wait for a member
        # A wish or a stop that came meanwhile found nobody.
        self.wake()
        return True

    def _fail(self, start: _Start, error: SandmillError, *, is_new: bool) -> None:
        """Write that a sandbox could not be made, or is not there any more; nothing of it is left."""
        if isinstance(error, EntrypointFailedError):
            self._outputs.keep_failure(start.claimed.trial_id, error)
        if self._settle(start):
            end = wanted_end(start.control) or failed_start(error, is_new=is_new)
            self._write_end(start, end, SandboxStats(), is_removed=True)
        else:
            # Whoever gave it up could not know that nothing would come of it.
            self._note_removal(start.claimed.sandbox_name)

    def _kill(self, live: _Live) -> None:
        """Called by whoever stops the attempt. Only what is not ours any more goes at once.

        Before any other end, what is to be kept of it is kept.
        """
        with self._lock:
            is_ours = not live.is_held
        if live.control.disowned and is_ours:
            live.runtime.remove(live.handle)
        self.wake()

    def _offer(self, live: _Live) -> None:
        """Let attempts have it, if it is a member for jobs: nobody else is ever given those."""
        key = member_key(live.claimed)
        if key is None:
            return
        self._note_image(str(live.claimed.spec["image"]))
        self.members.put(
            Spare(
                kind=(live.claimed.tenant_id, live.runtime.name, key),
                handle=live.handle,
                member=Member(live.claimed, live.session_id, live.handle.name),
                seize=lambda: self._seize(live),
                put_back=lambda: self._put_back(live),
                gone=lambda: self._let_go(live),
                end=lambda: self._end_silent(live),
                taken_at=live.taken_at,
            )
        )

    def _seize(self, live: _Live) -> bool:
        with self._lock:
            if live.is_busy or live.is_paused or live.control.stop.is_set():
                return False
            live.is_busy = live.is_held = True
            return self._live.get(live.claimed.trial_id) is live

    def _put_back(self, live: _Live) -> None:
        with self._lock:
            live.is_busy = live.is_held = False
        # What was wished of it meanwhile, or whoever has taken it from us, found it busy.
        self.wake()

    def _let_go(self, live: _Live) -> None:
        """Forget it: its sandbox is an attempt's now, which has told the sweep so before. It stays held for ever."""
        with self._lock:
            self._live.pop(live.claimed.trial_id, None)
        self.members.drop(live.claimed.trial_id)
        LIVE_SANDBOXES.set(len(self))
        self._on_end(live.claimed)
        self._tell(live.claimed.trial_id)

    def _end_silent(self, live: _Live) -> None:
        self.members.drop(live.claimed.trial_id)
        self._put_back(live)
        self._begin(live, lambda: self._end(live, silent()))

    def _clear_away(self, runtime: Runtime, handle: SandboxHandle) -> None:
        """Remove what came of a start that was given up. If that fails, the worker sweeps later."""
        if remove_sandbox(runtime, handle):
            self._note_removal(handle.name)

    def _note_removal(self, name: str) -> None:
        try:
            with self._statements.connect() as connection:
                SessionRepository(connection).mark_swept(name)
        except SQLAlchemyError as error:
            log.warning("removal_not_written", sandbox=name, error=str(error).splitlines()[0])

    def _has_some(self) -> bool:
        with self._lock:
            return bool(self._live or self._starting)

    def _make(
        self, start: _Start, writer: AttemptWriter, runtime: Runtime | None
    ) -> tuple[SandboxHandle, UUID | None]:
        """Make the sandbox; gives the pool, too, of which it is a member."""
        claimed = start.claimed
        if runtime is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {claimed.runtime}")
        kept = writer.ask(lambda connection: SessionKeepingRepository(connection).details(claimed.trial_id))
        if kept is None:
            raise RuntimeUnavailableError("the record of this sandbox is gone")
        spec = to_sandbox_spec(
            claimed,
            SessionSpec.from_json(claimed.spec),
            kept,
            box=self._box,
            node_id=self._node_id,
            session_id=start.session_id,
            ready_seconds=self._ready_seconds,
        )

        def note(text: str) -> None:
            with self._statements.connect() as connection:
                SessionKeepingRepository(connection).note_stage(
                    claimed.trial_id, self._node_id, "CONTAINER_STARTING", text
                )

        failpoint("session.before_create")
        if start.control.stop.is_set():
            # An earlier worker of this node may have made it.
            made = next((each for each in runtime.list() if each.name == spec.name), None)
            if made is None:
                raise RuntimeUnavailableError("it was ended before it was started")
            return made, kept.pool_id
        handle = start_sandbox(
            runtime, spec, timeout_seconds=claimed.start_left_seconds, notes=ProgressNotes(note)
        )
        if spec.entrypoint:
            try:
                check_entrypoint(runtime, handle, _entrypoint_of(claimed))
            except BaseException:
                remove_sandbox(runtime, handle)
                raise
        return handle, kept.pool_id

    def _mark_running(self, live: _Live, writer: AttemptWriter) -> None:
        claimed = live.claimed
        marked = writer.ask(
            lambda connection: SessionKeepingRepository(connection).mark_running(
                claimed, live.session_id, sandbox=live.handle.name
            )
        )
        if not marked:
            live.control.request(StopReason.DISOWNED)
            raise DisownedError

    def _let_go_on(self, live: _Live, writer: AttemptWriter) -> None:
        """See whether an adopted one stands still; one that an earlier process had stop for a snapshot goes on."""
        kept = writer.ask(
            lambda connection: SessionKeepingRepository(connection).details(live.claimed.trial_id)
        )
        with suppress(RunFailure):
            live.is_paused = live.runtime.state(live.handle).phase == "paused"
            if live.is_paused and kept is not None and kept.state == "Running":
                live.runtime.resume(live.handle)
                live.is_paused = False
                log.info("sandbox_thawed", trial_id=str(live.claimed.trial_id))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
            try:
                self._look()
            except SQLAlchemyError as error:
                log.warning("wishes_not_read", error=str(error).splitlines()[0])
            except Exception:
                log.exception("sandboxes_not_looked_at")

    def _look(self) -> None:
        with self._lock:
            idle = [live for live in self._live.values() if not live.is_busy]
            unwanted = [start for start in self._starting.values() if start.control.stop.is_set()]
            for start in unwanted:
                del self._starting[start.claimed.trial_id]
                start.is_given_up = True
        for start in unwanted:
            self._submit(lambda start=start: self._give_up(start))  # type: ignore[misc]
        for live in idle:
            if live.control.stop.is_set():
                self._begin(live, lambda live=live: self._end(live, wanted_end(live.control)))  # type: ignore[misc]
        if idle or self._live:
            self._obey()
            self._look_whether_they_run(idle)
            self._expire()
        with self._statements.connect() as connection:
            asks = SessionKeepingRepository(connection).asks(self._node_id)
        if asks.outputs:
            self._obey_outputs()
        if asks.snapshots:
            self._obey_snapshots()

    def _give_up(self, start: _Start) -> None:
        """Write the end of one that is still being made."""
        end = wanted_end(start.control)
        if end is None:
            return
        try:
            self._write_end(start, end, SandboxStats(), is_removed=False)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(start.claimed.trial_id), fence=start.claimed.fence)
        except Exception:
            # The heartbeat finds that the database believes in an attempt which nobody runs, and gives it back.
            log.exception("start_not_given_up", trial_id=str(start.claimed.trial_id))

    def _obey(self) -> None:
        with self._statements.connect() as connection:
            wishes = SessionKeepingRepository(connection).wishes(self._node_id)
        for wish in wishes:
            with self._lock:
                live = self._live.get(wish.trial_id)
            if live is None or live.is_busy or live.obeyed >= wish.wish_no:
                continue
            if wish.state == "Stopping":
                live.control.request(StopReason.FORCE_CANCEL)
                self._begin(live, lambda live=live: self._end(live, wanted_end(live.control)))  # type: ignore[misc]
            else:
                self._begin(live, lambda live=live, wish=wish: self._switch(live, wish))  # type: ignore[misc]

    def _obey_outputs(self) -> None:
        """Read for those who wait for what an entrypoint wrote."""
        for wanted in self._outputs.wanted():
            with self._lock:
                live = self._live.get(wanted.trial_id)
            if live is None or live.is_paused or not live.entrypoint.argv:
                self._outputs.refuse(wanted)
                self._tell(wanted.trial_id)
            elif not live.is_busy:
                self._begin(live, lambda live=live, wanted=wanted: self._answer(live, wanted))  # type: ignore[misc]

    def _answer(self, live: _Live, wanted: WantedOutput) -> None:
        self._outputs.answer(wanted, live.entrypoint, live.runtime, live.handle)
        self.wake()

    def _obey_snapshots(self) -> None:
        for order in self._snapshots.orders():
            if order.state == SnapshotState.DELETING:
                self._submit(lambda order=order: self._snapshots.remove(order))  # type: ignore[misc]
                continue
            with self._lock:
                live = self._live.get(order.sandbox_id)
            if live is None and order.is_orphan:
                self._submit(lambda order=order: self._snapshots.settle(order))  # type: ignore[misc]
            elif live is not None and not live.is_busy:
                self._begin(live, lambda live=live, order=order: self._make_snapshot(live, order))  # type: ignore[misc]

    def _make_snapshot(self, live: _Live, order: SnapshotOrder) -> None:
        self._snapshots.make(order, live.runtime, live.handle)
        # There may be another order, or a wish that found this one busy.
        self.wake()

    def _look_whether_they_run(self, idle: list[_Live]) -> None:
        """Notice what ended by itself or by another's hand. A part at a time, so that each is asked now and then."""
        now = time.monotonic()
        for live in idle:
            if live.is_busy or now - live.looked_at < _LOOK_SECONDS:
                continue
            live.looked_at = now
            self._begin(live, lambda live=live: self._check(live))  # type: ignore[misc]

    def _expire(self) -> None:
        """End what the scheduler should have ended, if it is away."""
        now = time.monotonic()
        if now < self._expiry_at:
            return
        self._expiry_at = now + _EXPIRY_SLACK_SECONDS
        with self._engine.begin() as connection:
            keeping = SessionKeepingRepository(connection)
            expired = [
                one.trial_id
                for one in keeping.expired(slack_seconds=_EXPIRY_SLACK_SECONDS, node_id=self._node_id)
            ]
            if expired:
                keeping.expire(expired, actor=self._actor)
                TrialEndingRepository(connection).end_trials(expired, session_end("SANDBOX_EXPIRED"))
        if expired:
            self.wake()

    def _begin(self, live: _Live, action: Callable[[], None]) -> None:
        with self._lock:
            if live.is_busy:
                return  # an attempt was faster; whatever it is, the next look finds it again
            live.is_busy = True

        def act() -> None:
            try:
                action()
            except Exception:
                log.exception("sandbox_action_failed", trial_id=str(live.claimed.trial_id))
                live.is_busy = False
                return  # the next look tries again, not this moment
            live.is_busy = False
            if live.control.stop.is_set():
                self.wake()

        try:
            self._actions.submit(act)
        except RuntimeError:  # the pool is shut down: this process ends
            live.is_busy = False

    def _submit(self, action: Callable[[], None]) -> None:
        def act() -> None:
            try:
                action()
            except Exception:
                log.exception("sandbox_action_failed")

        with suppress(RuntimeError):  # the pool is shut down: this process ends
            self._actions.submit(act)

    def _switch(self, live: _Live, wish: Wish) -> None:
        """Pause or resume."""
        pauses = wish.state == "Pausing"
        try:
            if pauses:
                live.runtime.pause(live.handle)
            else:
                live.runtime.resume(live.handle)
            live.is_paused = pauses
            state, reason = ("Paused", "CONTAINER_PAUSED") if pauses else ("Running", "CONTAINER_RUNNING")
            message = None
        except SandmillError as error:
            state = "Running" if pauses else "Paused"
            reason = unswitched(error, pauses=pauses)
            message = error.message
            log.warning("sandbox_not_switched", trial_id=str(wish.trial_id), error=error.message)
        with self._statements.connect() as connection:
            SessionKeepingRepository(connection).obeyed(wish, state, reason, message)
        live.obeyed = wish.wish_no
        self._tell(wish.trial_id)

    def _check(self, live: _Live) -> None:
        try:
            state = live.runtime.state(live.handle)
        except RunFailure as error:
            # Its engine is away, not the sandbox: nothing is known, so nothing is said.
            log.warning("sandbox_not_seen", trial_id=str(live.claimed.trial_id), error=error.message)
            return
        if state.phase in {"ended", "gone"} and not live.control.stop.is_set():
            self._end(live, died(state.exit_code, state.message, is_gone=state.phase == "gone"))
        elif state.phase in {"running", "paused"} and (state.phase == "paused") != live.is_paused:
            self._note_switch(live, is_paused=state.phase == "paused")
        if state.phase == "running":
            self._outputs.glance(live.claimed.trial_id, live.entrypoint, live.runtime, live.handle)

    def _note_switch(self, live: _Live, *, is_paused: bool) -> None:
        """Write what somebody did to it past us, unless something else is wished of it now."""
        before, state, reason = (
            ("Running", "Paused", "CONTAINER_PAUSED")
            if is_paused
            else ("Paused", "Running", "CONTAINER_RUNNING")
        )
        with self._statements.connect() as connection:
            SessionKeepingRepository(connection).note_state(
                live.claimed.trial_id, before=before, state=state, reason=reason
            )
        live.is_paused = is_paused
        self._tell(live.claimed.trial_id)

    def _end(self, live: _Live, end: SessionEnd | None) -> None:
        """Remove it and write that it is over. end None: it is not ours any more, and nothing is written."""
        if end is not None and not live.control.disowned:
            self._keep_what_stays(live)
        stats = SandboxStats()
        with suppress(SandmillError):
            stats = live.runtime.stats(live.handle)
        failpoint("session.before_remove")
        is_removed = remove_sandbox(live.runtime, live.handle)
        failpoint("session.after_remove")
        try:
            if end is not None and not live.control.disowned:
                self._write_end(live, end, stats, is_removed=is_removed)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(live.claimed.trial_id), fence=live.claimed.fence)
        finally:
            with self._lock:
                self._live.pop(live.claimed.trial_id, None)
            self.members.drop(live.claimed.trial_id)
            LIVE_SANDBOXES.set(len(self))
            self._on_end(live.claimed)
            self._tell(live.claimed.trial_id)

    def _keep_what_stays(self, live: _Live) -> None:
        """Keep the entrypoint's last words, and our own: snapshots that were accepted are made before the end."""
        try:
            if not live.is_paused:
                self._outputs.keep_last(live.claimed.trial_id, live.entrypoint, live.runtime, live.handle)
            self._snapshots.make_all(live.claimed.trial_id, live.runtime, live.handle)
        except Exception:
            log.exception("sandbox_leaves_less", trial_id=str(live.claimed.trial_id))

    def _write_end(
        self, kept: _Start | _Live, end: SessionEnd, stats: SandboxStats, *, is_removed: bool
    ) -> None:
        """Write the end of attempt, trial and session together; for one that goes on elsewhere only the attempt's."""
        claimed = kept.claimed
        goes_on = end.is_elsewhere and isinstance(kept, _Start) and claimed.desired == "run"
        attempt_end = to_session_attempt_end(
            end,
            stats,
            wall_seconds=claimed.elapsed_seconds + time.monotonic() - kept.taken_at,
            is_removed=is_removed,
            retry_seconds=0.0 if goes_on else None,
        )

        def write(connection: Connection) -> None:
            # The session first, as all do who lock more than one of the three.
            keeping = SessionKeepingRepository(connection)
            if goes_on:
                keeping.note_moved(
                    claimed.trial_id, reason=end.reason, message=end.message, actor=self._actor
                )
            else:
                keeping.end(
                    claimed.trial_id,
                    reason=end.reason,
                    message=end.message,
                    actor=self._actor,
                    is_wanted=end.failure is None,
                )
            if not AttemptRepository(connection).finish(claimed, kept.session_id, attempt_end):
                raise DisownedError

        failpoint("session.before_end")
        AttemptWriter(self._attempts, kept.control).ask_whole(write)
        failpoint("session.after_end")
        self._tell(claimed.trial_id)
        log.info("sandbox_ended", trial_id=str(claimed.trial_id), reason=end.reason)


def _entrypoint_of(claimed: ClaimedAttempt) -> tuple[str, ...]:
    return tuple(claimed.spec.get("entrypoint") or ())
