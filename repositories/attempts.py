"""SQL of one attempt on the worker. Every write is fenced: 0 rows means that the writer is a ghost and must stop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.states import LIVE_ATTEMPT_STATES, AttemptState, sql_list
from repositories.base import SqlRepository

__all__ = ["ArtifactRow", "AttemptEnd", "AttemptRepository", "AttemptStart", "ClaimedAttempt", "sandbox_name"]

_MINE = "trial_id = %(trial_id)s AND fence = %(fence)s AND session_id = %(session_id)s"
# In statements about several attempts states are compared as `state || ''`, for which no index is of use: each row is
# found by its key. The indexes of what is live look short by the statistics, and are full of dead entries.
_EACH = "a.trial_id = {of}.trial_id AND a.fence = {of}.fence AND a.session_id = {of}.session_id"
_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

COLLECT_SECONDS = 300.0
"""Least time to collect files and judge them once the steps are over; more while the trial's total time lasts."""

_OVERDUE_SECONDS = 60.0
"""So long after a worker should have ended an attempt by itself, with all its own margins, the scheduler takes it."""

_MOST_ADOPTIONS = 5
_STEADY_SECONDS = 300.0
"""An attempt is adopted at most so often in a row, each within this time after the one before: it may be what the
workers die of."""

# One statement, one commit: the claims, and the sandboxes that are about to be made. A sandbox is in the table before
# the runtime hears of it, so none is ever forgotten.
_CLAIM = f"""
WITH wanted AS (
  SELECT * FROM unnest(%(trials)s::uuid[], %(fences)s::bigint[], %(sandboxes)s::text[]) AS w(trial_id, fence, sandbox)
), claimed AS (
  UPDATE attempts a
  SET state = 'starting', phase = 'create', session_id = %(session_id)s, claimed_at = clock_timestamp(),
      start_deadline = a.created_at + make_interval(secs => (j.spec #>> '{{timeouts,start}}')::float8),
      overdue_at = clock_timestamp() + make_interval(secs => (j.spec #>> '{{timeouts,start}}')::float8)
                   + make_interval(secs => {_OVERDUE_SECONDS})
  FROM wanted w JOIN trials t ON t.id = w.trial_id JOIN jobs j ON j.id = t.job_id
  WHERE a.trial_id = w.trial_id AND a.fence = w.fence AND a.state || '' = 'dispatched'
    AND a.node_id = %(node_id)s
    AND EXISTS (SELECT 1 FROM worker_sessions s WHERE s.id = %(session_id)s AND s.ended_at IS NULL
                AND s.lease_until > clock_timestamp())
  RETURNING a.*, w.sandbox
), boxed AS (
  INSERT INTO sandboxes (name, trial_id, fence, tenant_id, node_id, runtime, image)
  SELECT c.sandbox, c.trial_id, c.fence, c.tenant_id, c.node_id, t.runtime, j.spec ->> 'image'
  FROM claimed c JOIN trials t ON t.id = c.trial_id JOIN jobs j ON j.id = t.job_id
)
"""

_CLAIMED = """
SELECT c.id AS attempt_id, c.trial_id, c.fence, c.number, c.tenant_id, t.index, t.seed, t.runtime, t.desired,
       t.cancel_mode, t.infra_losses, t.task_retries, t.rule_retries, t.job_id, t.batch_id, j.key AS job_key, j.spec,
       (SELECT b.traceparent FROM batches b WHERE b.id = t.batch_id) AS traceparent,
       extract(epoch FROM t.total_deadline - clock_timestamp())::float8 AS total_left_seconds,
       extract(epoch FROM c.start_deadline - clock_timestamp())::float8 AS start_left_seconds,
       extract(epoch FROM clock_timestamp() - t.queued_at)::float8 AS waited_seconds,
       extract(epoch FROM c.run_deadline - clock_timestamp())::float8 AS run_left_seconds,
       extract(epoch FROM clock_timestamp() - c.claimed_at)::float8 AS elapsed_seconds, c.state, c.progress,
       c.sandbox_name AS given_sandbox, s.image_auth, s.pool_id
FROM {source} c JOIN trials t ON t.id = c.trial_id JOIN jobs j ON j.id = t.job_id
LEFT JOIN sandbox_sessions s ON s.trial_id = c.trial_id
"""

_CLAIM_NOW = _CLAIM + _CLAIMED.format(source="claimed")
_CLAIM_LOOKUP = (
    _CLAIMED.format(source="attempts")
    + f"WHERE c.{_MINE.replace(' AND ', ' AND c.')} AND c.state = 'starting'"
)

# From sessions that this node had since the machine was started, as long as nobody else may have the trial. What has
# not begun to run is begun anew; the rest only where its sandbox can still be there.
_ADOPT = f"""
WITH adopted AS (
  UPDATE attempts a
  SET session_id = %(session_id)s, adopted_at = clock_timestamp(),
      adoptions = CASE WHEN a.adopted_at > clock_timestamp() - make_interval(secs => {_STEADY_SECONDS})
                       THEN a.adoptions + 1 ELSE 1 END
  FROM worker_sessions s, trials t
  WHERE a.session_id = s.id AND t.id = a.trial_id AND s.node_id = %(node_id)s AND s.boot_id = %(boot_id)s
    AND s.ended_at IS NOT NULL AND s.adoptable_until > clock_timestamp() AND a.{_LIVE}
    AND (a.state = 'starting' OR t.runtime = ANY(%(runtimes)s::text[]))
    AND NOT (a.adoptions >= {_MOST_ADOPTIONS}
             AND coalesce(a.adopted_at > clock_timestamp() - make_interval(secs => {_STEADY_SECONDS}), false))
    AND EXISTS (SELECT 1 FROM worker_sessions o WHERE o.id = %(session_id)s AND o.ended_at IS NULL
                AND o.lease_until > clock_timestamp())
  RETURNING a.*
)
""" + _CLAIMED.format(source="adopted")

# run_deadline is when the steps have to be over, by the run time of this attempt or the total of the trial.
_RUNNING = f"""
WITH starts AS (
  SELECT * FROM unnest(%(trials)s::uuid[], %(fences)s::bigint[], %(sessions)s::uuid[], %(sandboxes)s::text[],
                       %(phases)s::text[], %(progress)s::text[], %(totals)s::float8[], %(runs)s::float8[],
                       %(graces)s::float8[])
    AS s(trial_id, fence, session_id, sandbox, phase, progress, total, run, grace)
), until AS (
  SELECT s.*, least(coalesce(t.total_deadline, clock_timestamp() + make_interval(secs => s.total)),
                    clock_timestamp() + make_interval(secs => s.run)) AS deadline
  FROM starts s JOIN trials t ON t.id = s.trial_id
), mine AS (
  UPDATE attempts a SET state = 'running', phase = u.phase, progress = u.progress::jsonb,
    started_at = clock_timestamp(), run_deadline = u.deadline,
    overdue_at = u.deadline + make_interval(secs => u.grace + {_OVERDUE_SECONDS})
  FROM until u
  WHERE {_EACH.format(of="u")} AND a.state || '' = 'starting' RETURNING a.trial_id, a.fence, u.sandbox, u.total
), first AS (
  UPDATE trials t SET started_at = clock_timestamp(),
                      total_deadline = clock_timestamp() + make_interval(secs => m.total)
  FROM mine m WHERE t.id = m.trial_id AND t.started_at IS NULL
), box AS (
  UPDATE sandboxes b SET state = 'running' FROM mine m WHERE b.name = m.sandbox
)
SELECT trial_id, fence FROM mine
"""

_IS_IN = f"SELECT 1 FROM attempts WHERE {_MINE} AND state = %(state)s"

_PHASE = f"""
UPDATE attempts SET phase = %(phase)s, progress = %(progress)s::jsonb WHERE {_MINE} AND {_LIVE}
"""

_COLLECT_UNTIL = f"""greatest(t.total_deadline, clock_timestamp() + make_interval(secs => {COLLECT_SECONDS}))
                 + make_interval(secs => {_OVERDUE_SECONDS})"""

_COLLECTING = f"""
UPDATE attempts a SET state = 'collecting', phase = 'collect', progress = %(progress)s::jsonb,
  overdue_at = {_COLLECT_UNTIL}
FROM trials t
WHERE t.id = a.trial_id AND a.{_MINE.replace(" AND ", " AND a.")} AND a.state IN ('running', 'stopping')
"""

_STOPPING = f"""
WITH mine AS (
  UPDATE attempts a SET state = 'stopping', phase = 'stop', overdue_at = {_COLLECT_UNTIL}
  FROM trials t
  WHERE t.id = a.trial_id AND a.{_MINE.replace(" AND ", " AND a.")} AND a.state = 'running'
  RETURNING a.trial_id, a.fence
)
UPDATE trials t SET state = 'cancelling', state_reason = 'cancel'
FROM mine m WHERE t.id = m.trial_id AND t.fence = m.fence AND t.state = 'running' AND t.desired = 'cancel'
"""

_FINISH = f"""
WITH ends AS (
  SELECT * FROM unnest(%(trials)s::uuid[], %(fences)s::bigint[], %(sessions)s::uuid[], %(sandboxes)s::text[],
                       %(outcome)s::text[], %(reason)s::text[], %(end_reason)s::text[], %(failure)s::text[],
                       %(steps)s::text[], %(grade)s::text[], %(usage)s::text[], %(rewards)s::text[],
                       %(next_seq)s::int[], %(log_bytes)s::bigint[], %(truncated_bytes)s::bigint[],
                       %(retry_seconds)s::float8[], %(infra_loss)s::int[], %(task_retry)s::int[],
                       %(rule_retries)s::text[], %(is_removed)s::boolean[])
    AS e(trial_id, fence, session_id, sandbox, outcome, reason, end_reason, failure, steps, grade, usage, rewards,
         next_seq, log_bytes, truncated_bytes, retry_seconds, infra_loss, task_retry, rule_retries, is_removed)
), mine AS (
  UPDATE attempts a SET state = 'finished', phase = NULL, outcome = e.outcome, failure = e.failure::jsonb,
         steps = e.steps::jsonb, grade = e.grade::jsonb, usage = e.usage::jsonb, finished_at = clock_timestamp()
  FROM ends e
  WHERE {_EACH.format(of="e")} AND a.state || '' IN ('starting', 'running', 'stopping', 'collecting')
  RETURNING e.*
), box AS (
  UPDATE sandboxes b SET state = 'removed', removed_at = clock_timestamp(), end_reason = m.end_reason
  FROM mine m WHERE b.name = m.sandbox AND m.is_removed
), head AS (
  INSERT INTO log_heads (trial_id, fence, next_seq, bytes, truncated_bytes, closed)
  SELECT trial_id, fence, next_seq, log_bytes, truncated_bytes, true FROM mine
  ON CONFLICT (trial_id, fence) DO UPDATE SET next_seq = excluded.next_seq, bytes = excluded.bytes,
    truncated_bytes = excluded.truncated_bytes, closed = true
)
UPDATE trials t SET
  state = CASE WHEN m.retry_seconds IS NULL OR t.desired = 'cancel' THEN 'finished' ELSE 'retry_wait' END,
  state_reason = m.reason,
  outcome = CASE WHEN m.retry_seconds IS NULL THEN m.outcome WHEN t.desired = 'cancel' THEN 'cancelled' END,
  failure = CASE WHEN m.retry_seconds IS NULL OR t.desired = 'cancel' THEN m.failure::jsonb END,
  rewards = m.rewards::jsonb,
  run_at = clock_timestamp() + make_interval(secs => m.retry_seconds),
  infra_losses = infra_losses + m.infra_loss, task_retries = task_retries + m.task_retry,
  rule_retries = coalesce(m.rule_retries::int[], t.rule_retries),
  finished_at = CASE WHEN m.retry_seconds IS NULL OR t.desired = 'cancel' THEN clock_timestamp() END
FROM mine m WHERE t.id = m.trial_id AND t.fence = m.fence AND t.state || '' IN ('running', 'cancelling')
RETURNING t.id AS trial_id, t.fence
"""

_ARTIFACT = """
INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)
SELECT %(trial_id)s, %(fence)s, a.path, %(tenant_id)s, a.digest, a.size
FROM unnest(%(paths)s::text[], %(digests)s::text[], %(sizes)s::bigint[]) AS a(path, digest, size)
ON CONFLICT (trial_id, fence, path) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class ClaimedAttempt:
    """All that a worker needs to run one attempt.

    total_left_seconds: until the trial's total deadline; None before the first start. start_left_seconds: until the
    attempt has to be running. run_left_seconds: until its steps have to be over, once it is. elapsed_seconds: since the
    first claim. All by the database's clock, at the claim. state, progress: of one that was adopted; a new one is in
    state `starting`. given_sandbox: the name of the sandbox it was given out of a warm pool, if it was. image_auth,
    pool_id: of a live sandbox, for its image's registry and sealed; the pool of which it is a member.
    """

    attempt_id: UUID
    trial_id: UUID
    fence: int
    number: int
    tenant_id: int
    index: int
    seed: int | None
    runtime: str
    desired: str
    cancel_mode: str | None
    infra_losses: int
    task_retries: int
    rule_retries: list[int] | None
    job_id: UUID
    batch_id: UUID
    job_key: str
    spec: dict[str, Any]
    total_left_seconds: float | None
    start_left_seconds: float
    traceparent: str | None
    waited_seconds: float
    run_left_seconds: float | None = None
    elapsed_seconds: float = 0.0
    state: str = "starting"
    progress: dict[str, Any] | None = None
    given_sandbox: str | None = None
    image_auth: bytes | None = None
    pool_id: UUID | None = None

    @property
    def sandbox_name(self) -> str:
        """The name by which its sandbox is found again: the one way from an attempt to its sandbox."""
        return self.given_sandbox or sandbox_name(self.trial_id, self.fence)


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """The first step begins. phase: its name. progress: JSON of what another worker needs to go on.

    run_seconds None: no limit but the total.
    """

    phase: str
    total_seconds: float
    run_seconds: float | None = None
    grace_seconds: float = 0.0
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A collected file. digest: `sha256:<hex>`."""

    path: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt and what becomes of its trial. JSON fields are texts.

    retry_seconds None: the trial is finished; else it waits so long for its next attempt. infra_loss, task_retry: what
    is added to the trial's own counts; rule_retries: what they are now, by place of the rule, None: as before.
    is_removed: nothing of the sandbox is left.
    """

    outcome: str
    reason: str
    end_reason: str
    failure: str | None
    steps: str
    grade: str | None
    usage: str
    rewards: str | None
    next_seq: int
    log_bytes: int
    truncated_bytes: int
    retry_seconds: float | None = None
    infra_loss: int = 0
    task_retry: int = 0
    rule_retries: Sequence[int] | None = None
    is_removed: bool = True


def sandbox_name(trial_id: UUID, fence: int) -> str:
    """Name the sandbox that is made for one attempt: `sm-<trial>-<fence>`. It may use another: `ClaimedAttempt`."""
    return f"sm-{trial_id}-{fence}"


class AttemptRepository(SqlRepository):
    """Claims, progress and end, each for one (trial, fence, session).

    What happens to every attempt can be written for many at once; whether the fence keeps one off says nothing of the
    others.
    """

    def claim(self, trial_id: UUID, fence: int, *, session_id: UUID, node_id: UUID) -> ClaimedAttempt | None:
        """Take a dispatched attempt; None if it is a duplicate, stale or recalled bell."""
        claimed = self.claim_all([(trial_id, fence)], session_id=session_id, node_id=node_id)
        return claimed[0] if claimed else None

    def claim_all(
        self, wanted: Sequence[tuple[UUID, int]], *, session_id: UUID, node_id: UUID
    ) -> list[ClaimedAttempt]:
        """Take those of these (trial, fence) that are dispatched, each by itself, all in one commit."""
        parameters = {
            "trials": [trial_id for trial_id, _ in wanted],
            "fences": [fence for _, fence in wanted],
            "sandboxes": [sandbox_name(trial_id, fence) for trial_id, fence in wanted],
            "session_id": session_id,
            "node_id": node_id,
        }
        return [ClaimedAttempt(**row) for row in self._rows(_CLAIM_NOW, parameters)]

    def find_claimed(self, trial_id: UUID, fence: int, *, session_id: UUID) -> ClaimedAttempt | None:
        """Ask whether a claim whose reply was lost did commit."""
        row = self._row(_CLAIM_LOOKUP, {"trial_id": trial_id, "fence": fence, "session_id": session_id})
        return None if row is None else ClaimedAttempt(**row)

    def adopt(
        self, *, session_id: UUID, node_id: UUID, boot_id: str, runtimes: Sequence[str]
    ) -> list[ClaimedAttempt]:
        """Take over what ended sessions of this node ran. runtimes: those whose sandboxes outlive a worker.

        Left out is what was taken over again and again in a short time, and what may run elsewhere by now.
        """
        parameters = {
            "session_id": session_id,
            "node_id": node_id,
            "boot_id": boot_id,
            "runtimes": list(runtimes),
        }
        return [ClaimedAttempt(**row) for row in self._rows(_ADOPT, parameters)]

    def mark_running(self, attempt: ClaimedAttempt, session_id: UUID, start: AttemptStart) -> bool:
        """The sandbox answers. Starts the total deadline at the first start, the run time now. False: fenced off."""
        return bool(self.mark_all_running([(attempt, session_id, start)]))

    def mark_all_running(
        self, starts: Sequence[tuple[ClaimedAttempt, UUID, AttemptStart]]
    ) -> set[tuple[UUID, int]]:
        """Do so for each that is still its session's, all in one commit; gives (trial, fence) of those."""
        parameters = {
            **_keys([(attempt, session_id) for attempt, session_id, _ in starts]),
            "phases": [start.phase for _, _, start in starts],
            "progress": [start.progress for _, _, start in starts],
            "totals": _floats(start.total_seconds for _, _, start in starts),
            "runs": _floats(start.run_seconds for _, _, start in starts),
            "graces": _floats(start.grace_seconds for _, _, start in starts),
        }
        return {(row["trial_id"], row["fence"]) for row in self._rows(_RUNNING, parameters)}

    def mark_phase(
        self, attempt: ClaimedAttempt, session_id: UUID, phase: str, *, progress: str | None = None
    ) -> bool:
        """Say what the attempt does now. False: fenced off."""
        parameters = {**_key(attempt, session_id), "phase": phase, "progress": progress}
        return self._count(_PHASE, parameters) == 1

    def mark_collecting(
        self, attempt: ClaimedAttempt, session_id: UUID, *, progress: str | None = None
    ) -> bool:
        """Steps are over, files are being kept. False: fenced off."""
        return self._count(_COLLECTING, {**_key(attempt, session_id), "progress": progress}) == 1

    def mark_stopping(self, attempt: ClaimedAttempt, session_id: UUID) -> None:
        """A cancel has reached the worker."""
        self._count(_STOPPING, _key(attempt, session_id))

    def finish(self, attempt: ClaimedAttempt, session_id: UUID, end: AttemptEnd) -> bool:
        """Write the end of the attempt and the trial's next state together. False: fenced off."""
        return bool(self.finish_all([(attempt, session_id, end)]))

    def finish_all(self, ends: Sequence[tuple[ClaimedAttempt, UUID, AttemptEnd]]) -> set[tuple[UUID, int]]:
        """Do so for each that is still its session's, all in one commit; gives (trial, fence) of those."""
        parameters = {
            **{field: [getattr(end, field) for _, _, end in ends] for field in AttemptEnd.__slots__},
            **_keys([(attempt, session_id) for attempt, session_id, _ in ends]),
            "retry_seconds": _floats(end.retry_seconds for _, _, end in ends),
            "rule_retries": [_int_array(end.rule_retries) for _, _, end in ends],
        }
        return {(row["trial_id"], row["fence"]) for row in self._rows(_FINISH, parameters)}

    def is_in(self, attempt: ClaimedAttempt, session_id: UUID, state: AttemptState) -> bool:
        """Whether the attempt is its session's and in this state: for a write whose reply was lost."""
        return self._row(_IS_IN, {**_key(attempt, session_id), "state": state.value}) is not None

    def add_artifacts(self, attempt: ClaimedAttempt, rows: Sequence[ArtifactRow]) -> None:
        """Note collected files."""
        self._count(
            _ARTIFACT,
            {
                "trial_id": attempt.trial_id,
                "fence": attempt.fence,
                "tenant_id": attempt.tenant_id,
                "paths": [row.path for row in rows],
                "digests": [row.digest for row in rows],
                "sizes": [row.size_bytes for row in rows],
            },
        )


def _key(attempt: ClaimedAttempt, session_id: UUID) -> dict[str, Any]:
    return {"trial_id": attempt.trial_id, "fence": attempt.fence, "session_id": session_id}


def _keys(attempts: Sequence[tuple[ClaimedAttempt, UUID]]) -> dict[str, Any]:
    return {
        "trials": [attempt.trial_id for attempt, _ in attempts],
        "fences": [attempt.fence for attempt, _ in attempts],
        "sessions": [session_id for _, session_id in attempts],
        "sandboxes": [attempt.sandbox_name for attempt, _ in attempts],
    }


def _floats(values: Iterable[float | None]) -> list[float | None]:
    """Make floats of what may be integers, too: the driver takes no list of both."""
    return [None if value is None else float(value) for value in values]


def _int_array(values: Sequence[int] | None) -> str | None:
    """Spell an array for Postgres, since an array of arrays of different lengths is none."""
    return None if values is None else "{" + ",".join(map(str, values)) + "}"
