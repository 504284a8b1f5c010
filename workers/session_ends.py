"""Ends live sandboxes of this node: keeps what stays of one, removes it, and writes why it is over."""

import time
from contextlib import suppress

from sqlalchemy import Connection

from core.errors import SandmillError
from core.failpoints import failpoint
from core.logging import get_logger
from repositories.attempts import AttemptRepository
from repositories.session_keeping import SessionKeepingRepository
from runtimes.base import SandboxStats
from services.attempt_writes import AttemptWriter, DisownedError
from services.sandbox_handling import REMOVAL_PAUSES, remove_sandbox
from services.session_endings import SessionEnd, to_session_attempt_end, wanted_end
from workers.kept_sandboxes import KeeperParts, KeptSandboxes, LiveSandbox, SandboxStart

__all__ = ["SessionEnder"]

log = get_logger(__name__)


_RETRY_SECONDS, _MOST_RETRY_SECONDS = 5.0, 30.0
"""Until a removal is tried again: twice as long each time. An engine that is away is back within a minute or so."""


class SessionEnder:
    """Of one node. Who calls `end` has claimed the sandbox."""

    def __init__(self, kept: KeptSandboxes, parts: KeeperParts) -> None:
        """kept: where what has ended is forgotten."""
        self._kept = kept
        self._parts = parts

    def end(self, live: LiveSandbox, end: SessionEnd | None) -> None:
        """Remove it and write that it is over. end None: it is not ours any more, and nothing is written.

        One that somebody wants to be over, and that will not go, is not over: it is kept, and tried again.
        """
        if end is not None and not live.control.disowned and not live.removal_tries:
            self._keep_what_stays(live)
        stats = SandboxStats()
        with suppress(SandmillError):
            stats = live.runtime.stats(live.handle)
        failpoint("session.before_remove")
        pauses = REMOVAL_PAUSES if not live.removal_tries else ()
        is_removed = remove_sandbox(live.runtime, live.handle, pauses=pauses)
        failpoint("session.after_remove")
        if not is_removed and end is not None and end.failure is None and not live.control.disowned:
            self._try_again(live)
            return
        try:
            if end is not None and not live.control.disowned:
                self.write_end(live, end, stats, is_removed=is_removed)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(live.claimed.trial_id), fence=live.claimed.fence)
        finally:
            self._kept.forget(live)

    def _try_again(self, live: LiveSandbox) -> None:
        """Leave it for later, and say what it waits for; it counts until then, since it is there."""
        wait = min(_MOST_RETRY_SECONDS, _RETRY_SECONDS * 2.0 ** min(live.removal_tries, 10))
        live.removal_tries += 1
        live.next_try_at = time.monotonic() + wait
        with self._parts.statements.connect() as connection:
            is_new = SessionKeepingRepository(connection).note_not_removed(
                live.claimed.trial_id,
                message=f"the runtime {live.runtime.name} of its node does not remove it now: tried until it does",
            )
        if is_new:
            self._parts.tell(live.claimed.trial_id)

    def give_up(self, start: SandboxStart) -> None:
        """Write the end of one that is still being made."""
        end = wanted_end(start.control)
        if end is None:
            return
        try:
            self.write_end(start, end, SandboxStats(), is_removed=False)
        except DisownedError:
            log.warning("sandbox_disowned", trial_id=str(start.claimed.trial_id), fence=start.claimed.fence)
        except Exception:
            # The heartbeat finds that the database believes in an attempt which nobody runs, and gives it back.
            log.exception("start_not_given_up", trial_id=str(start.claimed.trial_id))

    def write_end(
        self, kept: SandboxStart | LiveSandbox, end: SessionEnd, stats: SandboxStats, *, is_removed: bool
    ) -> None:
        """Write the end of attempt, trial and session together; for one that goes on elsewhere only the attempt's."""
        claimed = kept.claimed
        goes_on = end.is_elsewhere and isinstance(kept, SandboxStart) and claimed.desired == "run"
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
                    claimed.trial_id, reason=end.reason, message=end.message, actor=self._parts.actor
                )
            else:
                keeping.end(
                    claimed.trial_id,
                    reason=end.reason,
                    message=end.message,
                    actor=self._parts.actor,
                    is_wanted=end.failure is None,
                )
            if not AttemptRepository(connection).finish(claimed, kept.session_id, attempt_end):
                raise DisownedError

        failpoint("session.before_end")
        AttemptWriter(self._parts.attempts, kept.control).ask_whole(write)
        failpoint("session.after_end")
        self._parts.tell(claimed.trial_id)
        log.info("sandbox_ended", trial_id=str(claimed.trial_id), reason=end.reason)

    def _keep_what_stays(self, live: LiveSandbox) -> None:
        """Keep the entrypoint's last words, and our own: snapshots that were accepted are made before the end."""
        try:
            if not live.is_paused:
                self._parts.outputs.keep_last(
                    live.claimed.trial_id, live.entrypoint, live.runtime, live.handle
                )
            self._parts.snapshots.make_all(live.claimed.trial_id, live.runtime, live.handle)
        except Exception:
            log.exception("sandbox_leaves_less", trial_id=str(live.claimed.trial_id))
