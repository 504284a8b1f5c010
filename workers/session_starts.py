"""Brings claimed and adopted live sandboxes of this node to run."""

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from core.errors import EntrypointFailedError, RunFailure, RuntimeUnavailableError, SandmillError
from core.failpoints import failpoint
from core.logging import get_logger
from core.sealing import SecretBox
from models.states import AttemptState
from repositories.attempts import ClaimedAttempt
from repositories.session_keeping import SessionKeepingRepository
from repositories.sessions import SessionRepository
from runtimes.base import Runtime, SandboxHandle, SandboxStats
from services.attempt_control import AttemptControl, StopReason
from services.attempt_writes import AttemptWriter, DisownedError
from services.entrypoints import check_entrypoint
from services.sandbox_handling import find_sandbox, remove_sandbox
from services.session_endings import failed_start, unknown_end, wanted_end
from services.session_spec import SessionSpec
from services.session_starting import (
    ProgressNotes,
    start_sandbox,
    to_sandbox_spec,
)
from workers.kept_sandboxes import KeeperParts, KeptSandboxes, LiveSandbox, SandboxStart
from workers.outputs import Entrypoint
from workers.session_ends import SessionEnder

__all__ = ["SessionStarter"]

log = get_logger(__name__)


class SessionStarter:
    """Of one node; each start has a thread of its own."""

    def __init__(
        self,
        kept: KeptSandboxes,
        ends: SessionEnder,
        parts: KeeperParts,
        *,
        box: SecretBox,
        ready_seconds: float,
        tell_started: Callable[[UUID], None],
        on_running: Callable[[LiveSandbox], None],
    ) -> None:
        """on_running: called with each that runs from now on, before anybody is told. The rest: see SessionKeeper."""
        self._kept = kept
        self._ends = ends
        self._parts = parts
        self._box = box
        self._ready_seconds = ready_seconds
        self._tell_started = tell_started
        self._on_running = on_running

    def take(self, claimed: ClaimedAttempt, session_id: UUID, control: AttemptControl) -> bool:
        """Bring a claimed or adopted sandbox to run. True: it is kept here from now on. Never raises."""
        writer = AttemptWriter(self._parts.attempts, control)
        start = SandboxStart(claimed, control, session_id)
        self._kept.begin(start)
        # A stop that comes while it is made reaches the keeper's thread, not this one.
        control.arm(self._parts.wake)
        if claimed.desired == "cancel":
            # Asked for before anybody here could hear of it.
            control.request(StopReason.FORCE_CANCEL)
        try:
            return self._take(start, writer)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(claimed.trial_id), fence=claimed.fence)
        except Exception as error:
            log.exception("sandbox_not_taken", trial_id=str(claimed.trial_id), fence=claimed.fence)
            if self._kept.settle(start):
                with suppress(DisownedError, SQLAlchemyError):
                    self._ends.write_end(start, unknown_end(error), SandboxStats(), is_removed=False)
        finally:
            self._kept.settle(start)
        return False

    def _take(self, start: SandboxStart, writer: AttemptWriter) -> bool:
        claimed, control = start.claimed, start.control
        runtime = self._parts.runtimes.get(claimed.runtime)
        control.is_kept = runtime is not None and runtime.outlives
        is_new = claimed.state == AttemptState.STARTING
        try:
            handle = self._make(start, writer, runtime) if is_new else find_sandbox(runtime, claimed)
        except SandmillError as error:
            self._fail(start, error, is_new=is_new)
            return False
        if runtime is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {claimed.runtime}")
        failpoint("session.after_create")
        if not self._kept.settle(start):
            self._clear_away(runtime, handle)
            return False
        entrypoint = Entrypoint(_entrypoint_of(claimed))
        live = LiveSandbox(claimed, control, start.session_id, runtime, handle, entrypoint, start.taken_at)
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
        self._kept.add(live)
        self._on_running(live)
        if is_new and claimed.pool_id is None:
            self._tell_started(claimed.trial_id)
        else:
            self._parts.tell(claimed.trial_id)
        if is_new and claimed.pool_id is not None:
            self._parts.tell(claimed.pool_id)  # for those who wait for a member
        # A wish or a stop that came meanwhile found nobody.
        self._parts.wake()
        return True

    def _fail(self, start: SandboxStart, error: SandmillError, *, is_new: bool) -> None:
        """Write that a sandbox could not be made, or is not there any more; nothing of it is left."""
        if isinstance(error, EntrypointFailedError):
            self._parts.outputs.keep_failure(start.claimed.trial_id, error)
        if self._kept.settle(start):
            volumes = [str(volume["name"]) for volume in start.claimed.spec.get("volumes", ())]
            end = wanted_end(start.control) or failed_start(error, is_new=is_new, volumes=volumes)
            self._ends.write_end(start, end, SandboxStats(), is_removed=True)
        else:
            # Whoever gave it up could not know that nothing would come of it.
            self._note_removal(start.claimed.sandbox_name)

    def _kill(self, live: LiveSandbox) -> None:
        """Called by whoever stops the attempt. Only what is not ours any more goes at once.

        Before any other end, what is to be kept of it is kept.
        """
        if live.control.disowned and self._kept.is_ours(live):
            live.runtime.remove(live.handle)
        self._parts.wake()

    def _make(self, start: SandboxStart, writer: AttemptWriter, runtime: Runtime | None) -> SandboxHandle:
        claimed = start.claimed
        if runtime is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {claimed.runtime}")
        wanted = SessionSpec.from_json(claimed.spec)
        has_claims = any(volume.claim is not None for volume in wanted.volumes)
        spec = to_sandbox_spec(
            claimed,
            wanted,
            box=self._box,
            node_id=self._parts.node_id,
            session_id=start.session_id,
            ready_seconds=self._ready_seconds,
            owner=self._owner_of(claimed, writer) if has_claims else "",
        )

        def note(text: str) -> None:
            with self._parts.statements.connect() as connection:
                SessionKeepingRepository(connection).note_stage(
                    claimed.trial_id, self._parts.node_id, "CONTAINER_STARTING", text
                )

        failpoint("session.before_create")
        if start.control.stop.is_set():
            # An earlier worker of this node may have made it.
            made = next((each for each in runtime.list() if each.name == spec.name), None)
            if made is None:
                raise RuntimeUnavailableError("it was ended before it was started")
            return made
        handle = start_sandbox(
            runtime, spec, timeout_seconds=claimed.start_left_seconds, notes=ProgressNotes(note)
        )
        if spec.entrypoint:
            try:
                check_entrypoint(runtime, handle, _entrypoint_of(claimed))
            except BaseException:
                remove_sandbox(runtime, handle)
                raise
        return handle

    @staticmethod
    def _owner_of(claimed: ClaimedAttempt, writer: AttemptWriter) -> str:
        return writer.ask(lambda connection: SessionKeepingRepository(connection).owner(claimed.tenant_id))

    def _mark_running(self, live: LiveSandbox, writer: AttemptWriter) -> None:
        claimed = live.claimed
        marked = writer.ask(
            lambda connection: SessionKeepingRepository(connection).mark_running(
                claimed, live.session_id, sandbox=live.handle.name
            )
        )
        if not marked:
            live.control.request(StopReason.DISOWNED)
            raise DisownedError

    def _let_go_on(self, live: LiveSandbox, writer: AttemptWriter) -> None:
        """See whether an adopted one stands still; one that an earlier process had stop for a snapshot goes on."""
        state = writer.ask(
            lambda connection: SessionKeepingRepository(connection).state(live.claimed.trial_id)
        )
        with suppress(RunFailure):
            live.is_paused = live.runtime.state(live.handle).phase == "paused"
            if live.is_paused and state == "Running":
                live.runtime.resume(live.handle)
                live.is_paused = False
                log.info("sandbox_thawed", trial_id=str(live.claimed.trial_id))

    def _clear_away(self, runtime: Runtime, handle: SandboxHandle) -> None:
        """Remove what came of a start that was given up. If that fails, the worker sweeps later."""
        if remove_sandbox(runtime, handle):
            self._note_removal(handle.name)

    def _note_removal(self, name: str) -> None:
        try:
            with self._parts.statements.connect() as connection:
                SessionRepository(connection).mark_swept(name)
        except SQLAlchemyError as error:
            log.warning("removal_not_written", sandbox=name, error=str(error).splitlines()[0])


def _entrypoint_of(claimed: ClaimedAttempt) -> tuple[str, ...]:
    return tuple(claimed.spec.get("entrypoint") or ())
