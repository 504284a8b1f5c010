"""Rows and small actors for tests of the queue: a tenant, a batch, a worker session."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import Engine

from core.ids import new_id
from repositories.attempts import AttemptEnd, AttemptRepository, AttemptStart, ClaimedAttempt
from repositories.dispatch import Bell
from repositories.sessions import SessionRepository
from services.batch_progress import BatchProgressKeeper, ProgressTold
from services.dispatch import Dispatcher, DispatchPolicy
from services.jobspec import JobSpec, Step

__all__ = ["Bells", "QueueWorld", "make_spec"]


def make_spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "key": "job",
        "image": "fake",
        "runtime": "fake",
        "steps": (Step(name="run", run="true"),),
    }
    return JobSpec(**{**values, **changes})


@dataclass
class Bells:
    """Collects bells instead of sending them; `deliver` decides what happens to each."""

    rung: list[Bell] = field(default_factory=list)

    def ring(self, bells, *, again: bool = False) -> None:
        self.rung.extend(bells)


class QueueWorld:
    """One database, one dispatcher, and helpers that act as API and worker do."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bells = Bells()
        self.policy = DispatchPolicy(slots_per_tick=100, rering_seconds=2.0, claim_timeout_seconds=30.0)
        self.dispatcher = Dispatcher(engine, self.bells, self.policy)

    def execute(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        with self.engine.begin() as connection:
            result = connection.exec_driver_sql(sql, parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def tenant(self, name: str = "acme", **columns: Any) -> int:
        row = self.execute("INSERT INTO tenants (name) VALUES (%(name)s) RETURNING id", name=name)[0]
        if columns:
            changes = ", ".join(f"{column} = %({column})s" for column in columns)
            self.execute(f"UPDATE tenants SET {changes} WHERE id = %(id)s", id=row["id"], **columns)
        return row["id"]

    def trials(
        self, tenant: int, count: int = 1, *, spec: JobSpec | None = None, **columns: Any
    ) -> list[UUID]:
        """Queue `count` trials of one new job; columns go to the trials."""
        spec = spec or make_spec()
        batch, job = new_id(), new_id()
        values = {"cpu_millicores": 1000, "memory_bytes": 1 << 28, "runtime": "fake", **columns}
        names = ", ".join(values)
        places = ", ".join(f"%({name})s" for name in values)
        ids = [new_id() for _ in range(count)]
        common = {"b": batch, "j": job, "t": tenant, "n": count}
        # In one transaction, as a submission is: a job has never fewer trials than it says.
        with self.engine.begin() as connection:
            run = connection.exec_driver_sql
            run(
                "INSERT INTO batches (id, tenant_id, job_count, trial_count) VALUES (%(b)s, %(t)s, 1, %(n)s)",
                common,
            )
            for item in spec.inputs:
                if item.blob is not None:
                    run(
                        "INSERT INTO blobs (tenant_id, digest, size_bytes) VALUES (%(t)s, %(d)s, 1)"
                        " ON CONFLICT DO NOTHING",
                        {"t": tenant, "d": item.blob},
                    )
            run(
                "INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)"
                " VALUES (%(j)s, %(t)s, %(b)s, 0, %(k)s, 'run', %(d)s, %(s)s, %(n)s)",
                {**common, "k": spec.key, "d": spec.digest, "s": Jsonb(spec.to_json())},
            )
            run(
                f"INSERT INTO trials (id, tenant_id, batch_id, job_id, index, {names})"
                f" VALUES (%(id)s, %(t)s, %(b)s, %(j)s, %(i)s, {places})",
                [{**common, **values, "id": trial, "i": index} for index, trial in enumerate(ids)],
            )
        return ids

    def many_trials(self, tenant: int, rows: list[dict[str, Any]], *, spec: JobSpec | None = None) -> None:
        """Queue trials of one new job at once, each with its own priority, cpu_millicores and memory_bytes."""
        sql = """
        WITH batch AS (
          INSERT INTO batches (id, tenant_id, job_count, trial_count) VALUES (%(batch)s, %(tenant)s, 1, %(count)s)
        ), job AS (
          INSERT INTO jobs (id, tenant_id, batch_id, ordinal, key, kind, digest, spec, trial_count)
          VALUES (%(job)s, %(tenant)s, %(batch)s, 0, 'job', 'run', 'd', %(spec)s, %(count)s)
        )
        INSERT INTO trials (id, tenant_id, batch_id, job_id, index, runtime, priority, cpu_millicores, memory_bytes)
        SELECT r.id, %(tenant)s, %(batch)s, %(job)s, r.n - 1, 'fake', r.priority, r.cpu, r.memory
        FROM unnest(%(ids)s::uuid[], %(priorities)s::int[], %(cpus)s::int[], %(memories)s::bigint[])
          WITH ORDINALITY AS r(id, priority, cpu, memory, n) ORDER BY r.n
        """
        self.execute(
            sql,
            batch=new_id(),
            job=new_id(),
            tenant=tenant,
            count=len(rows),
            spec=Jsonb((spec or make_spec()).to_json()),
            ids=[new_id() for _ in rows],
            priorities=[row.get("priority", 0) for row in rows],
            cpus=[row.get("cpu_millicores", 1000) for row in rows],
            memories=[row.get("memory_bytes", 1 << 28) for row in rows],
        )

    def end_batches(self) -> None:
        """Count all ends, as the scheduler does, and so finish batches whose last trial is."""
        told = ProgressTold(stopped=lambda _: None, moved=lambda _: None, queued=lambda: None)
        while BatchProgressKeeper(self.engine, told).advance():
            pass

    def session(
        self, *, node: UUID | None = None, slots: int = 8, lease: float = 60.0, **changes: Any
    ) -> "Seat":
        node_id, session_id = node or new_id(), new_id()
        values = {"cpu_millicores": 64_000, "memory_bytes": 64 << 30, "runtimes": ["fake"], **changes}
        with self.engine.begin() as connection:
            SessionRepository(connection).open(
                session_id, node_id, name="n", slots=slots, pid=1, version="0", lease_seconds=lease, **values
            )
        return Seat(self, node_id, session_id)

    def trial(self, trial_id: UUID) -> dict[str, Any]:
        return self.execute("SELECT * FROM trials WHERE id = %(id)s", id=trial_id)[0]

    def attempt(self, trial_id: UUID, fence: int) -> dict[str, Any]:
        sql = "SELECT * FROM attempts WHERE trial_id = %(id)s AND fence = %(f)s"
        return self.execute(sql, id=trial_id, f=fence)[0]

    def states(self, tenant: int) -> list[str]:
        sql = "SELECT state FROM trials WHERE tenant_id = %(t)s ORDER BY seq"
        return [row["state"] for row in self.execute(sql, t=tenant)]


@dataclass
class Seat:
    """A worker session as its statements see it."""

    world: QueueWorld
    node_id: UUID
    session_id: UUID

    def claim(self, bell: Bell) -> ClaimedAttempt | None:
        with self.world.engine.begin() as connection:
            repository = AttemptRepository(connection)
            return repository.claim(
                bell.trial_id, bell.fence, session_id=self.session_id, node_id=self.node_id
            )

    def start(self, claimed: ClaimedAttempt, **times: float) -> bool:
        start = AttemptStart(phase="run", **{"total_seconds": 60, **times})
        with self.world.engine.begin() as connection:
            repository = AttemptRepository(connection)
            return repository.mark_running(claimed, self.session_id, start)

    def finish(self, claimed: ClaimedAttempt, **changes: Any) -> bool:
        values: dict[str, Any] = {
            "outcome": "passed",
            "reason": "passed",
            "end_reason": "finished",
            "failure": None,
            "steps": "[]",
            "grade": None,
            "usage": "{}",
            "rewards": None,
            "next_seq": 0,
            "log_bytes": 0,
            "truncated_bytes": 0,
        }
        with self.world.engine.begin() as connection:
            repository = AttemptRepository(connection)
            return repository.finish(claimed, self.session_id, AttemptEnd(**{**values, **changes}))
