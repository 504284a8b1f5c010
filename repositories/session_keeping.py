"""SQL by which nodes and the scheduler keep live sandboxes: started, obeyed, expired, ended."""

from dataclasses import dataclass
from uuid import UUID

from repositories.attempts import ClaimedAttempt
from repositories.base import SqlRepository

__all__ = ["Asks", "ExpiredSandbox", "OrphanedSandbox", "SessionKeepingRepository", "Wish"]

_STATE = "SELECT state FROM sandbox_sessions WHERE trial_id = %(trial_id)s"

# Its number alone is the same in the next installation: on one engine, that one's tenant would find its volumes.
_OWNER = """
SELECT id || ' of ' || (extract(epoch FROM created_at) * 1000000)::bigint AS owner FROM tenants WHERE id = %(tenant_id)s
"""

_STAGE = """
UPDATE sandbox_sessions SET node_id = %(node_id)s, state_reason = %(reason)s, state_message = %(message)s
WHERE trial_id = %(trial_id)s AND state = 'Pending'
"""

# Whoever locks the session, its attempt and its trial locks them in this order: a delete meets this statement, and
# neither may wait for the other. A delete that came meanwhile stays one.
_RUNNING = """
WITH opened AS MATERIALIZED (
  SELECT trial_id, state = 'Pending' AS is_pending FROM sandbox_sessions
  WHERE trial_id = %(trial_id)s FOR NO KEY UPDATE
), mine AS (
  UPDATE attempts a SET state = 'running', phase = 'session', started_at = clock_timestamp(), run_deadline = NULL,
                        overdue_at = NULL
  FROM opened o
  WHERE a.trial_id = o.trial_id AND a.fence = %(fence)s AND a.session_id = %(session_id)s AND a.state = 'starting'
  RETURNING a.trial_id, a.node_id, o.is_pending
), first AS (
  UPDATE trials t SET started_at = clock_timestamp() FROM mine m WHERE t.id = m.trial_id AND t.started_at IS NULL
), box AS (
  UPDATE sandboxes SET state = 'running' FROM mine WHERE name = %(sandbox)s
), told AS (
  UPDATE sandbox_sessions s SET node_id = m.node_id, runtime = %(runtime)s, sandbox_name = %(sandbox)s,
    running_at = CASE WHEN m.is_pending THEN clock_timestamp() END,
    state = CASE WHEN m.is_pending THEN 'Running' ELSE s.state END,
    state_at = CASE WHEN m.is_pending THEN clock_timestamp() ELSE s.state_at END,
    state_reason = CASE WHEN m.is_pending THEN 'CONTAINER_RUNNING' ELSE s.state_reason END,
    state_message = CASE WHEN m.is_pending THEN NULL ELSE s.state_message END
  FROM mine m WHERE s.trial_id = m.trial_id AND s.ended_at IS NULL
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason)
  SELECT trial_id, 'worker:' || node_id, 'CONTAINER_RUNNING' FROM mine WHERE is_pending
)
SELECT 1 FROM mine
"""

_WISHES = """
SELECT trial_id, state, wish_no FROM sandbox_sessions
WHERE node_id = %(node_id)s AND state IN ('Pausing', 'Resuming', 'Stopping')
"""

_ASKS = """
SELECT EXISTS (SELECT 1 FROM sandbox_outputs WHERE node_id = %(node_id)s AND wanted_at IS NOT NULL) AS outputs,
  EXISTS (SELECT 1 FROM snapshots WHERE node_id = %(node_id)s AND state IN ('Creating', 'Deleting')) AS snapshots
"""

# Only if nothing else was wished since: then that is next.
_OBEYED = """
WITH moved AS (
  UPDATE sandbox_sessions SET state = %(state)s, state_reason = %(reason)s, state_message = %(message)s,
                              state_at = clock_timestamp()
  WHERE trial_id = %(trial_id)s AND wish_no = %(wish_no)s AND ended_at IS NULL RETURNING trial_id, node_id
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT trial_id, 'worker:' || node_id, %(reason)s, %(message)s FROM moved
"""

# By somebody's hand on the node itself.
_NOTE_STATE = """
WITH moved AS (
  UPDATE sandbox_sessions SET state = %(state)s, state_reason = %(reason)s, state_message = NULL,
                              state_at = clock_timestamp()
  WHERE trial_id = %(trial_id)s AND state = %(before)s RETURNING trial_id, node_id
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT trial_id, 'worker:' || node_id, %(reason)s, 'not by a call of this service' FROM moved
"""

_NOT_REMOVED = """
UPDATE sandbox_sessions SET state_message = %(message)s
WHERE trial_id = %(trial_id)s AND state = 'Stopping' AND ended_at IS NULL AND state_message IS DISTINCT FROM %(message)s
"""

_NOTE_MOVED = """
WITH moved AS (
  UPDATE sandbox_sessions SET node_id = NULL, state_reason = 'SANDBOX_ACCEPTED', state_message = %(message)s
  WHERE trial_id = %(trial_id)s AND state = 'Pending' RETURNING trial_id
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT trial_id, %(actor)s, %(reason)s, %(message)s FROM moved
"""

# The first reason stays: a delete that the loss of the node overtook was still a delete. One that its tenant or the
# clock has ended is hidden from the wire with that, what failed stays to be looked at.
_END = """
WITH w AS (
  SELECT trial_id, state = 'Stopping' OR %(is_wanted)s AS is_wanted FROM sandbox_sessions
  WHERE trial_id = %(trial_id)s AND ended_at IS NULL FOR NO KEY UPDATE
), ended AS (
  UPDATE sandbox_sessions s SET
    state = CASE WHEN w.is_wanted THEN 'Terminated' ELSE 'Failed' END,
    state_reason = CASE WHEN w.is_wanted THEN coalesce(s.end_reason, %(reason)s) ELSE %(reason)s END,
    end_reason = CASE WHEN w.is_wanted THEN coalesce(s.end_reason, %(reason)s) ELSE %(reason)s END,
    ended_by = coalesce(ended_by, %(actor)s), state_message = %(message)s, state_at = clock_timestamp(),
    ended_at = clock_timestamp(),
    hidden_at = CASE WHEN w.is_wanted THEN clock_timestamp() ELSE s.hidden_at END
  FROM w WHERE s.trial_id = w.trial_id RETURNING s.trial_id, s.end_reason, s.state_message
)
INSERT INTO sandbox_events (trial_id, actor, reason, message)
SELECT trial_id, %(actor)s, end_reason, state_message FROM ended
"""

# By the clock of the database, and never backwards.
_EXTEND = """
UPDATE sandbox_sessions SET expires_at = clock_timestamp() + make_interval(secs => renew_seconds)
WHERE trial_id = %(trial_id)s AND state = 'Running' AND renew_seconds IS NOT NULL
  AND expires_at < clock_timestamp() + make_interval(secs => renew_seconds)
"""

_EXPIRED = """
SELECT s.trial_id, s.tenant_id FROM sandbox_sessions s
WHERE s.hidden_at IS NULL AND s.expires_at < clock_timestamp() - make_interval(secs => %(slack)s)
  AND s.state <> 'Stopping' AND (%(node_id)s::uuid IS NULL OR s.node_id = %(node_id)s)
ORDER BY s.expires_at LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED
"""

_EXPIRE = """
WITH moved AS (
  UPDATE sandbox_sessions SET
    state = CASE WHEN ended_at IS NULL THEN 'Stopping' ELSE state END,
    end_reason = CASE WHEN ended_at IS NULL THEN 'SANDBOX_EXPIRED' ELSE end_reason END,
    ended_by = CASE WHEN ended_at IS NULL THEN %(actor)s ELSE ended_by END,
    state_reason = CASE WHEN ended_at IS NULL THEN 'SANDBOX_EXPIRED' ELSE state_reason END,
    hidden_at = CASE WHEN ended_at IS NULL THEN NULL ELSE clock_timestamp() END,
    state_at = CASE WHEN ended_at IS NULL THEN clock_timestamp() ELSE state_at END,
    wish_no = wish_no + 1
  WHERE trial_id = ANY(%(ids)s) RETURNING trial_id, ended_at
)
INSERT INTO sandbox_events (trial_id, actor, reason)
SELECT trial_id, %(actor)s, 'SANDBOX_EXPIRED' FROM moved WHERE ended_at IS NULL
"""

# Trials that ended by another hand than the keeper's: lost nodes, the queue's deadline, cancels by their number.
_ORPHANED = """
SELECT s.trial_id, s.tenant_id, s.state, t.state_reason, t.outcome, t.failure ->> 'code' AS code,
       t.failure ->> 'message' AS message
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id
WHERE s.ended_at IS NULL AND t.state = 'finished'
ORDER BY s.trial_id LIMIT 500 FOR NO KEY UPDATE OF s SKIP LOCKED
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wished of a sandbox: state is Pausing, Resuming or Stopping."""

    trial_id: UUID
    state: str
    wish_no: int


@dataclass(frozen=True, slots=True)
class Asks:
    """What kinds of things are asked of a node, beside wishes."""

    outputs: bool
    snapshots: bool


@dataclass(frozen=True, slots=True)
class ExpiredSandbox:
    """One whose time is over."""

    trial_id: UUID
    tenant_id: int


@dataclass(frozen=True, slots=True)
class OrphanedSandbox:
    """One whose trial has ended without it."""

    trial_id: UUID
    tenant_id: int
    state: str
    state_reason: str | None
    outcome: str | None
    code: str | None
    message: str | None


class SessionKeepingRepository(SqlRepository):
    """Live sandboxes of all tenants, for nodes and the scheduler."""

    def state(self, trial_id: UUID) -> str | None:
        """Give its state on the wire. None: the trial is no live sandbox's."""
        row = self._row(_STATE, {"trial_id": trial_id})
        return None if row is None else str(row["state"])

    def owner(self, tenant_id: int) -> str:
        """Give what a tenant's volumes are named by on an engine: another one in each installation."""
        row = self._row(_OWNER, {"tenant_id": tenant_id})
        return str(tenant_id) if row is None else str(row["owner"])

    def note_stage(self, trial_id: UUID, node_id: UUID, reason: str, message: str | None) -> None:
        """Say what a start is at, while it is pending."""
        parameters = {"trial_id": trial_id, "node_id": node_id, "reason": reason, "message": message}
        self._count(_STAGE, parameters)

    def mark_running(self, attempt: ClaimedAttempt, session_id: UUID, *, sandbox: str) -> bool:
        """The sandbox answers. False: fenced off."""
        parameters = {
            "trial_id": attempt.trial_id,
            "fence": attempt.fence,
            "session_id": session_id,
            "runtime": attempt.runtime,
            "sandbox": sandbox,
        }
        return bool(self._rows(_RUNNING, parameters))

    def wishes(self, node_id: UUID) -> list[Wish]:
        """What is wished of this node's sandboxes and not done yet."""
        return [Wish(**row) for row in self._rows(_WISHES, {"node_id": node_id})]

    def asks(self, node_id: UUID) -> Asks:
        """Whether a node is asked for outputs, or for something about snapshots: one look for both."""
        return Asks(**self._rows(_ASKS, {"node_id": node_id})[0])

    def obeyed(self, wish: Wish, state: str, reason: str, message: str | None = None) -> None:
        """Write where a sandbox is after a wish, unless there is a newer one."""
        parameters = {
            "trial_id": wish.trial_id,
            "wish_no": wish.wish_no,
            "state": state,
            "reason": reason,
            "message": message,
        }
        self._count(_OBEYED, parameters)

    def note_state(self, trial_id: UUID, *, before: str, state: str, reason: str) -> None:
        """Write where a sandbox is that went there unasked. before: where it has to be till now."""
        self._count(_NOTE_STATE, {"trial_id": trial_id, "before": before, "state": state, "reason": reason})

    def note_not_removed(self, trial_id: UUID, *, message: str) -> bool:
        """Say of one that is being ended why it is still there. False: that was said before, or it is over."""
        return self._count(_NOT_REMOVED, {"trial_id": trial_id, "message": message}) > 0

    def note_moved(self, trial_id: UUID, *, reason: str, message: str | None, actor: str) -> None:
        """Say that a start has ended on this node and goes on elsewhere."""
        self._count(_NOTE_MOVED, {"trial_id": trial_id, "reason": reason, "message": message, "actor": actor})

    def end(self, trial_id: UUID, *, reason: str, message: str | None, actor: str, is_wanted: bool) -> bool:
        """Write that it is over, if nobody has. is_wanted: by its tenant's or the clock's will, not by a failure."""
        parameters = {
            "trial_id": trial_id,
            "reason": reason,
            "message": message,
            "actor": actor,
            "is_wanted": is_wanted,
        }
        return self._count(_END, parameters) == 1

    def extend(self, trial_id: UUID) -> bool:
        """Move the expiry of a running sandbox on after a use, if it asks for that. False: it stays as it was."""
        return self._count(_EXTEND, {"trial_id": trial_id}) == 1

    def expired(self, *, slack_seconds: float = 0.0, node_id: UUID | None = None) -> list[ExpiredSandbox]:
        """Lock those whose time is over by so much. node_id: only of that node."""
        rows = self._rows(_EXPIRED, {"slack": slack_seconds, "node_id": node_id})
        return [ExpiredSandbox(**row) for row in rows]

    def expire(self, trial_ids: list[UUID], *, actor: str) -> None:
        """Wish the end of those that live; hide those that have ended."""
        self._count(_EXPIRE, {"ids": trial_ids, "actor": actor})

    def orphaned(self) -> list[OrphanedSandbox]:
        """Lock those whose trial has ended without them."""
        return [OrphanedSandbox(**row) for row in self._rows(_ORPHANED)]
