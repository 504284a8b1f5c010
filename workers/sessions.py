"""Keeps this node's live sandboxes: starts them, obeys what is wished of them, ends them. None holds a thread."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.errors import RunFailure, SandmillError
from core.logging import get_logger
from core.sealing import SecretBox
from models.snapshots import SnapshotState
from repositories.attempts import ClaimedAttempt
from repositories.job_members import Member
from repositories.sandbox_outputs import WantedOutput
from repositories.session_keeping import SessionKeepingRepository, Wish
from repositories.snapshot_keeping import SnapshotOrder
from repositories.trial_ending import TrialEndingRepository
from runtimes.base import Runtime
from services.attempt_control import AttemptControl, StopReason
from services.attempt_writes import AttemptStatements
from services.early_ends import session_end
from services.session_endings import died, silent, unswitched, wanted_end
from services.session_spec import KIND
from services.session_starting import member_key
from workers.kept_sandboxes import KeeperParts, KeptSandboxes, LiveSandbox
from workers.outputs import OutputKeeper
from workers.session_ends import SessionEnder
from workers.session_starts import SessionStarter
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
        self._tell = tell
        self._note_image = note_image
        statements = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._statements = statements
        self._node_id = node_id
        self._outputs = OutputKeeper(statements, node_id=node_id, tell=tell)
        self._snapshots = SnapshotKeeper(statements, runtimes, node_id=node_id, tell=tell)
        self._parts = KeeperParts(
            attempts, statements, runtimes, node_id, self._outputs, self._snapshots, tell, self.wake
        )
        self.members = SpareMembers(tell=tell_pools)
        self._kept = KeptSandboxes(self.members, on_end=on_end, tell=tell, wake=self.wake)
        self._ends = SessionEnder(self._kept, self._parts)
        self._starts = SessionStarter(
            self._kept,
            self._ends,
            self._parts,
            box=box,
            ready_seconds=ready_seconds,
            tell_started=tell_started or tell,
            on_running=self._offer,
        )
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._actions = ThreadPoolExecutor(_ACTIONS_AT_ONCE, thread_name_prefix="sandbox")
        self._thread = threading.Thread(target=self._run, name="sandboxes", daemon=True)
        self._expiry_at = 0.0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def start(self) -> None:
        """Begin to look after them."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float = 30.0) -> None:
        """Let what was asked to stop end, then end the threads."""
        deadline = time.monotonic() + timeout_seconds
        if self._thread.is_alive():
            self.wake()
            while self._kept.has_some() and time.monotonic() < deadline:
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
        return self._starts.take(claimed, session_id, control)

    def _offer(self, live: LiveSandbox) -> None:
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
                seize=lambda: self._kept.seize(live),
                put_back=lambda: self._kept.put_back(live),
                gone=lambda: self._kept.forget(live),
                end=lambda: self._end_silent(live),
                taken_at=live.taken_at,
            )
        )

    def _end_silent(self, live: LiveSandbox) -> None:
        self.members.drop(live.claimed.trial_id)
        self._kept.put_back(live)
        self._begin(live, lambda: self._ends.end(live, silent()))

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
        idle = self._kept.idle()
        for start in self._kept.give_up_unwanted():
            self._submit(lambda start=start: self._ends.give_up(start))  # type: ignore[misc]
        for live in idle:
            if live.control.stop.is_set():
                self._begin_end(live)
        if idle or len(self._kept):
            self._obey()
            self._look_whether_they_run(idle)
            self._expire()
        with self._statements.connect() as connection:
            asks = SessionKeepingRepository(connection).asks(self._node_id)
        if asks.outputs:
            self._obey_outputs()
        if asks.snapshots:
            self._obey_snapshots()

    def _obey(self) -> None:
        with self._statements.connect() as connection:
            wishes = SessionKeepingRepository(connection).wishes(self._node_id)
        for wish in wishes:
            live = self._kept.find(wish.trial_id)
            if live is None or live.is_busy or live.obeyed >= wish.wish_no:
                continue
            if wish.state == "Stopping":
                live.control.request(StopReason.FORCE_CANCEL)
                self._begin_end(live)
            else:
                self._begin(live, lambda live=live, wish=wish: self._switch(live, wish))  # type: ignore[misc]

    def _obey_outputs(self) -> None:
        """Read for those who wait for what an entrypoint wrote."""
        for wanted in self._outputs.wanted():
            live = self._kept.find(wanted.trial_id)
            if live is None or live.is_paused or not live.entrypoint.argv:
                self._outputs.refuse(wanted)
                self._tell(wanted.trial_id)
            elif not live.is_busy:
                self._begin(live, lambda live=live, wanted=wanted: self._answer(live, wanted))  # type: ignore[misc]

    def _answer(self, live: LiveSandbox, wanted: WantedOutput) -> None:
        self._outputs.answer(wanted, live.entrypoint, live.runtime, live.handle)
        self.wake()

    def _obey_snapshots(self) -> None:
        for order in self._snapshots.orders():
            if order.state == SnapshotState.DELETING:
                self._submit(lambda order=order: self._snapshots.remove(order))  # type: ignore[misc]
                continue
            live = self._kept.find(order.sandbox_id)
            if live is None and order.is_orphan:
                self._submit(lambda order=order: self._snapshots.settle(order))  # type: ignore[misc]
            elif live is not None and not live.is_busy:
                self._begin(live, lambda live=live, order=order: self._make_snapshot(live, order))  # type: ignore[misc]

    def _make_snapshot(self, live: LiveSandbox, order: SnapshotOrder) -> None:
        self._snapshots.make(order, live.runtime, live.handle)
        # There may be another order, or a wish that found this one busy.
        self.wake()

    def _look_whether_they_run(self, idle: list[LiveSandbox]) -> None:
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
                keeping.expire(expired, actor=self._parts.actor)
                TrialEndingRepository(connection).end_trials(expired, session_end("SANDBOX_EXPIRED"))
        if expired:
            self.wake()

    def _begin_end(self, live: LiveSandbox) -> None:
        """End what was asked to stop, unless that was tried in vain just now; what is not ours any more, at once."""
        if live.control.disowned or time.monotonic() >= live.next_try_at:
            self._begin(live, lambda: self._ends.end(live, wanted_end(live.control)))

    def _begin(self, live: LiveSandbox, action: Callable[[], None]) -> None:
        if not self._kept.claim(live):
            return  # an attempt was faster; whatever it is, the next look finds it again

        def act() -> None:
            try:
                action()
            except Exception:
                log.exception("sandbox_action_failed", trial_id=str(live.claimed.trial_id))
                self._kept.release(live)
                return  # the next look tries again, not this moment
            self._kept.release(live)
            if live.control.stop.is_set() and not live.removal_tries:
                self.wake()

        try:
            self._actions.submit(act)
        except RuntimeError:  # the pool is shut down: this process ends
            self._kept.release(live)

    def _submit(self, action: Callable[[], None]) -> None:
        def act() -> None:
            try:
                action()
            except Exception:
                log.exception("sandbox_action_failed")

        with suppress(RuntimeError):  # the pool is shut down: this process ends
            self._actions.submit(act)

    def _switch(self, live: LiveSandbox, wish: Wish) -> None:
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

    def _check(self, live: LiveSandbox) -> None:
        try:
            state = live.runtime.state(live.handle)
        except RunFailure as error:
            # Its engine is away, not the sandbox: nothing is known, so nothing is said.
            log.warning("sandbox_not_seen", trial_id=str(live.claimed.trial_id), error=error.message)
            return
        if state.phase in {"ended", "gone"} and not live.control.stop.is_set():
            self._ends.end(live, died(state.exit_code, state.message, is_gone=state.phase == "gone"))
        elif state.phase in {"running", "paused"} and (state.phase == "paused") != live.is_paused:
            self._note_switch(live, is_paused=state.phase == "paused")
        if state.phase == "running":
            self._outputs.glance(live.claimed.trial_id, live.entrypoint, live.runtime, live.handle)

    def _note_switch(self, live: LiveSandbox, *, is_paused: bool) -> None:
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
