"""SQL of nodes and worker sessions: the leases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.types.json import Jsonb

from models.states import LIVE_ATTEMPT_STATES, sql_list
from repositories.base import SqlRepository
from repositories.log_chunks import LogChunkRepository

__all__ = ["HeldAttempt", "SessionRepository"]

_LIVE = f"state IN ({sql_list(LIVE_ATTEMPT_STATES)})"

_UPSERT_NODE = """
INSERT INTO nodes (id, name, runtimes, cpu_millicores, memory_bytes, slots, gpu, labels, ingress_url, ingress_address)
VALUES (%(id)s, %(name)s, %(runtimes)s, %(cpu)s, %(memory)s, %(slots)s, %(gpu)s, %(labels)s,
        %(ingress_url)s, %(ingress_address)s)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, runtimes = excluded.runtimes, slots = excluded.slots,
  cpu_millicores = excluded.cpu_millicores, memory_bytes = excluded.memory_bytes, gpu = excluded.gpu,
  labels = excluded.labels, ingress_url = excluded.ingress_url, ingress_address = excluded.ingress_address
"""

# What the old session ran may still run, so that this one can take it over: for as long as the old lease would have
# held, since nothing may start anywhere else before. Sandboxes do not outlive the machine's own restart.
_SUPERSEDE = """
UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = 'superseded',
                           adoptable_until = CASE WHEN boot_id = %(boot_id)s THEN lease_until END
WHERE node_id = %(node_id)s AND ended_at IS NULL
"""

_OPEN = """
INSERT INTO worker_sessions (id, node_id, pid, version, boot_id, lease_until)
VALUES (%(id)s, %(node_id)s, %(pid)s, %(version)s, %(boot_id)s,
        clock_timestamp() + make_interval(secs => %(lease)s))
"""

_GIVE_UP_REST = """
UPDATE worker_sessions SET adoptable_until = NULL WHERE node_id = %(node_id)s AND adoptable_until IS NOT NULL
"""

# A lapsed lease is never revived: whoever let it lapse has lost its attempts and opens a new session.
_RENEW = """
UPDATE worker_sessions
SET lease_until = clock_timestamp() + make_interval(secs => %(lease)s), beat_at = clock_timestamp()
WHERE id = %(id)s AND ended_at IS NULL AND lease_until > clock_timestamp()
"""

_HELD = f"""
SELECT a.trial_id, a.fence, CASE WHEN t.desired = 'run' THEN a.desired ELSE t.desired END AS desired, t.cancel_mode
FROM attempts a JOIN trials t ON t.id = a.trial_id
WHERE a.session_id = %(id)s AND a.{_LIVE}
"""

_NOTE_IMAGES = "UPDATE nodes SET images = %(images)s WHERE id = %(node_id)s"

_NOTE_LABELS = "UPDATE nodes SET labels = %(labels)s WHERE id = %(node_id)s"

_UNCLAIMED = """
SELECT trial_id, fence FROM attempts
WHERE node_id = %(node_id)s AND state = 'dispatched' AND start_deadline > clock_timestamp()
  AND created_at < clock_timestamp() - make_interval(secs => %(age)s)
ORDER BY created_at LIMIT %(limit)s
"""

_DRAIN = "UPDATE worker_sessions SET draining = true WHERE id = %(id)s AND ended_at IS NULL"

_CANARY = "UPDATE worker_sessions SET canary_at = clock_timestamp() WHERE id = %(id)s AND ended_at IS NULL"

_SWEPT = """
UPDATE sandboxes SET state = 'removed', removed_at = clock_timestamp(), end_reason = 'swept'
WHERE name = %(name)s AND state <> 'removed'
"""

_ENDED = """
SELECT b.name FROM sandboxes b JOIN attempts a ON a.trial_id = b.trial_id AND a.fence = b.fence
WHERE b.node_id = %(node_id)s AND b.runtime = %(runtime)s AND b.state <> 'removed' AND a.finished_at IS NOT NULL
"""

_END = """
UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = %(reason)s
WHERE id = %(id)s AND ended_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """An attempt this session owns in the database's view. desired: the user's wish, else the scheduler's."""

    trial_id: UUID
    fence: int
    desired: str
    cancel_mode: str | None


class SessionRepository(SqlRepository):
    """Statements of one worker about itself."""

    def open(
        self,
        session_id: UUID,
        node_id: UUID,
        *,
        name: str,
        runtimes: Sequence[str],
        cpu_millicores: int,
        memory_bytes: int,
        slots: int,
        pid: int,
        version: str,
        lease_seconds: float,
        boot_id: str | None = None,
        gpu: int = 0,
        labels: Mapping[str, str] | None = None,
        ingress_address: str | None = None,
        ingress_url: str | None = None,
    ) -> None:
        """Register the node, end whatever session it had, open this one.

        boot_id: of the machine since its last start. What an earlier session with the same one ran can be adopted;
        with another, or without, it is lost. What that one was storing is stored when this returns, or never will be.
        """
        LogChunkRepository(self._connection).settle(node_id)
        self._count(
            _UPSERT_NODE,
            {
                "id": node_id,
                "name": name,
                "runtimes": list(runtimes),
                "cpu": cpu_millicores,
                "memory": memory_bytes,
                "slots": slots,
                "gpu": gpu,
                "labels": Jsonb(dict(labels or {})),
                "ingress_address": ingress_address,
                "ingress_url": ingress_url,
            },
        )
        self._count(_SUPERSEDE, {"node_id": node_id, "boot_id": boot_id})
        self._count(
            _OPEN,
            {
                "id": session_id,
                "node_id": node_id,
                "pid": pid,
                "version": version,
                "boot_id": boot_id,
                "lease": lease_seconds,
            },
        )

    def note_images(self, node_id: UUID, images: Sequence[str]) -> None:
        """Say what sandboxes of this node were made from lately: those images need not be fetched."""
        self._count(_NOTE_IMAGES, {"node_id": node_id, "images": list(images)})

    def note_labels(self, node_id: UUID, labels: Mapping[str, str]) -> None:
        """Say by which labels jobs and sandboxes find this node from now on."""
        self._count(_NOTE_LABELS, {"node_id": node_id, "labels": Jsonb(dict(labels))})

    def give_up_rest(self, node_id: UUID) -> None:
        """What earlier sessions of this node still hold is lost from now on; nothing of it runs any more."""
        self._count(_GIVE_UP_REST, {"node_id": node_id})

    def renew(self, session_id: UUID, *, lease_seconds: float) -> bool:
        """Extend the lease. False: it has lapsed or was ended; all its attempts are lost."""
        return self._count(_RENEW, {"id": session_id, "lease": lease_seconds}) == 1

    def held(self, session_id: UUID) -> list[HeldAttempt]:
        """All live attempts of this session."""
        return [HeldAttempt(**row) for row in self._rows(_HELD, {"id": session_id})]

    def unclaimed(self, node_id: UUID, *, age_seconds: float, limit: int) -> list[tuple[UUID, int]]:
        """Attempts that wait for this node for so long: the way round a broker that does not deliver."""
        rows = self._rows(_UNCLAIMED, {"node_id": node_id, "age": age_seconds, "limit": limit})
        return [(row["trial_id"], row["fence"]) for row in rows]

    def drain(self, session_id: UUID) -> None:
        """Take no new attempts."""
        self._count(_DRAIN, {"id": session_id})

    def note_canary(self, session_id: UUID) -> None:
        """A bell that the worker rang for itself has come through the broker."""
        self._count(_CANARY, {"id": session_id})

    def ended_sandboxes(self, node_id: UUID, runtime: str) -> list[str]:
        """Names of sandboxes that nobody has said to be gone, though their attempts are over."""
        return [row["name"] for row in self._rows(_ENDED, {"node_id": node_id, "runtime": runtime})]

    def mark_swept(self, sandbox: str) -> None:
        """Note that a sandbox nobody runs any more is gone now."""
        self._count(_SWEPT, {"name": sandbox})

    def end(self, session_id: UUID, *, reason: str) -> None:
        """Close the session; attempts it still holds are lost."""
        self._count(_END, {"id": session_id, "reason": reason})
