"""SQL by which an attempt is given a member of a warm pool, and by which it goes back to a sandbox of its own."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from repositories.attempts import ClaimedAttempt, sandbox_name
from repositories.base import SqlRepository

__all__ = ["GIVEN_TO_JOB", "JobMemberRepository", "Member", "Taking"]

GIVEN_TO_JOB = "POOL_GIVEN_TO_JOB"
"""Why a member is over, in the words of the wire: its sandbox goes on as that of an attempt."""

Taking = Literal["taken", "not_free", "not_mine"]
"""not_free: the member was given up or is held by somebody now. not_mine: the fence keeps the attempt's worker off."""

# All three rows of the member are locked or none: whoever has one of them in another order is not waited for. The
# member's attempt and trial are ended by the caller, in this transaction, by the statement that ends every attempt.
# Its row in `sandboxes` goes over to the attempt, so that whoever loses, ends or sweeps the attempt finds it there; the
# attempt's own row stood for a sandbox that was never made.
_TAKE = """
WITH again AS (
  -- The reply to the commit of an earlier try was lost.
  SELECT 1 FROM attempts WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND session_id = %(session_id)s
    AND state = 'starting' AND sandbox_name = %(sandbox)s
), picked AS MATERIALIZED (
  SELECT s.trial_id FROM sandbox_sessions s
  JOIN sandbox_pools p ON p.id = s.pool_id AND p.revision = s.pool_revision AND p.tenant_id = s.tenant_id
  JOIN trials t ON t.id = s.trial_id JOIN attempts m ON m.trial_id = s.trial_id AND m.fence = t.fence
  WHERE s.trial_id = %(member)s AND s.tenant_id = %(tenant_id)s AND s.sandbox_name = %(sandbox)s
    AND s.is_warm AND s.state = 'Running' AND s.ended_at IS NULL AND p.spec ? 'job_workdir'
    AND t.state = 'running' AND t.desired = 'run' AND m.fence = %(member_fence)s AND m.state = 'running'
    AND m.session_id = %(member_session)s AND m.node_id = %(node_id)s
  FOR UPDATE OF s, t, m SKIP LOCKED
), mine AS (
  UPDATE attempts a SET sandbox_name = %(sandbox)s FROM picked k
  WHERE a.trial_id = %(trial_id)s AND a.fence = %(fence)s AND a.session_id = %(session_id)s AND a.state = 'starting'
    AND a.node_id = %(node_id)s AND a.tenant_id = %(tenant_id)s AND a.sandbox_name IS NULL
  RETURNING k.trial_id AS member
), own AS (
  DELETE FROM sandboxes USING mine WHERE name = %(own)s
), box AS (
  UPDATE sandboxes b SET trial_id = %(trial_id)s, fence = %(fence)s FROM mine WHERE b.name = %(sandbox)s
), ended AS (
  UPDATE sandbox_sessions s SET is_warm = false, state = 'Terminated', state_reason = %(reason)s,
    state_message = %(message)s, end_reason = %(reason)s, ended_by = %(actor)s, state_at = clock_timestamp(),
    ended_at = clock_timestamp(), wish_no = wish_no + 1
  FROM mine WHERE s.trial_id = mine.member RETURNING s.trial_id
), happened AS (
  INSERT INTO sandbox_events (trial_id, actor, reason, message)
  SELECT trial_id, %(actor)s, %(reason)s, %(message)s FROM ended
)
SELECT EXISTS (SELECT 1 FROM again) AS is_again, EXISTS (SELECT 1 FROM picked) AS is_free,
       EXISTS (SELECT 1 FROM mine) AS is_mine
"""

# What it was given is gone by now, or is removed by whoever sweeps.
_GO_OWN_WAY = """
WITH mine AS (
  UPDATE attempts SET sandbox_name = NULL
  WHERE trial_id = %(trial_id)s AND fence = %(fence)s AND session_id = %(session_id)s AND state = 'starting'
  RETURNING trial_id, fence, tenant_id, node_id
), given AS (
  UPDATE sandboxes b SET state = 'removed', removed_at = clock_timestamp(), end_reason = 'given_and_dead'
  FROM mine WHERE b.name = %(sandbox)s AND b.state <> 'removed' AND %(is_removed)s
), own AS (
  INSERT INTO sandboxes (name, trial_id, fence, tenant_id, node_id, runtime, image)
  SELECT %(own)s, m.trial_id, m.fence, m.tenant_id, m.node_id, t.runtime, j.spec ->> 'image'
  FROM mine m JOIN trials t ON t.id = m.trial_id JOIN jobs j ON j.id = t.job_id
  ON CONFLICT (name) DO NOTHING
)
SELECT 1 FROM mine
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A free member, as its node knows it. session_id: under which the node holds it. sandbox: its name there."""

    claimed: ClaimedAttempt
    session_id: UUID
    sandbox: str


class JobMemberRepository(SqlRepository):
    """Statements of a worker, fenced on both sides."""

    def take(
        self, attempt: ClaimedAttempt, session_id: UUID, member: Member, *, node_id: UUID, actor: str
    ) -> Taking:
        """Let the member be over, and its sandbox be the attempt's; the caller then ends the member's attempt.

        Only one of the attempt's tenant and node, and only if the attempt has not begun and has no other. Again is no
        error.
        """
        parameters = {
            **_key(attempt, session_id),
            "tenant_id": attempt.tenant_id,
            "node_id": node_id,
            "member": member.claimed.trial_id,
            "member_fence": member.claimed.fence,
            "member_session": member.session_id,
            "sandbox": member.sandbox,
            "actor": actor,
            "reason": GIVEN_TO_JOB,
            "message": f"to attempt {attempt.fence} of trial {attempt.trial_id}",
        }
        row = self._rows(_TAKE, parameters)[0]
        if row["is_mine"] or row["is_again"]:
            return "taken"
        return "not_mine" if row["is_free"] else "not_free"

    def go_own_way(self, attempt: ClaimedAttempt, session_id: UUID, *, is_removed: bool) -> bool:
        """Let an attempt that has not begun have a sandbox of its own instead of what it was given. False: fenced off.

        is_removed: nothing is left of what it was given.
        """
        parameters = {
            **_key(attempt, session_id),
            "sandbox": attempt.given_sandbox,
            "is_removed": is_removed,
        }
        return bool(self._rows(_GO_OWN_WAY, parameters))


def _key(attempt: ClaimedAttempt, session_id: UUID) -> dict[str, object]:
    return {
        "trial_id": attempt.trial_id,
        "fence": attempt.fence,
        "session_id": session_id,
        "own": sandbox_name(attempt.trial_id, attempt.fence),
    }
