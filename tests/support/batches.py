"""A batch of the queue's tests: submitted as the API does it, moved on as scheduler and worker do it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from core.blobstore import BlobStore
from services.batch_progress import BatchProgressKeeper, ProgressTold
from services.batch_verbs import BatchVerbService
from services.batches import BatchService, NewBatch, NewJobs
from services.fan_out import Materialiser
from services.jobspec import JobSpec, TrialPlan
from tests.support.queue import QueueWorld, Seat, make_spec

__all__ = ["BatchWorld", "job"]


def job(key: str, count: int = 1, *, stop: str = "never", **changes: Any) -> JobSpec:
    """A job of `count` trials for the fake runtime."""
    return make_spec(key=key, trials=TrialPlan(count, stop=stop), **changes)  # type: ignore[arg-type] # as text


@dataclass
class BatchWorld:
    """One tenant with one large node. stopped, moved: what the scheduler told others."""

    world: QueueWorld
    tenant: int
    seat: Seat
    window: int = 10_000
    page: int = 5_000
    stopped: list[UUID] = field(default_factory=list)
    moved: list[UUID] = field(default_factory=list)

    def __post_init__(self) -> None:
        told = ProgressTold(
            stopped=lambda nodes: self.stopped.extend(t for trials in nodes.values() for t in trials),
            moved=self.moved.extend,
            queued=lambda: None,
        )
        self.keeper = BatchProgressKeeper(self.world.engine, told)
        self.materialiser = Materialiser(self.world.engine, window=self.window, page=self.page)

    @classmethod
    def make(cls, world: QueueWorld, name: str = "acme", **options: Any) -> "BatchWorld":
        return cls(world, world.tenant(name), world.session(slots=10_000, cpu_millicores=10**9), **options)

    def submit(self, *specs: JobSpec, **changes: Any) -> UUID:
        batch = NewBatch(
            name=None,
            labels={},
            priority=0,
            implicit=False,
            jobs=NewJobs.of(*specs),
            **changes,
        )
        with self.world.engine.begin() as connection:
            return self._service(connection).create(batch).batch_id

    def append(self, batch_id: UUID, *specs: JobSpec) -> None:
        jobs = NewJobs.of(*specs)
        with self.world.engine.begin() as connection:
            self._service(connection).append(batch_id, jobs)

    def verb(self, name: str, kind: str, key: UUID, *arguments: Any, **options: Any) -> Any:
        """Do what the API does: `verb("cancel", "batch", batch_id, mode="force")`."""
        with self.world.engine.begin() as connection:
            verbs = BatchVerbService(connection, self.tenant)
            return getattr(verbs, name)(getattr(verbs, kind)(key), *arguments, **options)

    def close(self, batch_id: UUID) -> None:
        with self.world.engine.begin() as connection:
            BatchVerbService(connection, self.tenant).close(batch_id)

    def progress(self) -> None:
        """Count everything that has ended, and what that sets off."""
        for _ in range(1000):
            if not self.keeper.advance() and not self._inbox():
                return
        raise AssertionError("progress does not come to an end")

    def start(self, number: int = 1000) -> list[Any]:
        """Dispatch and claim what may run; gives the claimed attempts."""
        del self.world.bells.rung[:]
        while len(self.world.bells.rung) < number and self.world.dispatcher.tick():
            pass
        claimed = [self.seat.claim(bell) for bell in self.world.bells.rung]
        return [one for one in claimed if one is not None and self.seat.start(one)]

    def end(self, claimed: Any, outcome: str) -> None:
        assert self.seat.finish(claimed, outcome=outcome, reason=outcome)

    def run(self, **outcomes: str) -> list[str]:
        """Run all that may run now, jobs that are not named to `passed`; gives their keys in order."""
        claimed = self.start()
        for one in claimed:
            self.end(one, outcomes.get(one.job_key, "passed"))
        self.progress()
        return [one.job_key for one in claimed]

    def counts(self, batch_id: UUID) -> dict[str, int]:
        """What the API tells: finished trials by outcome, the others by state."""
        with self.world.engine.begin() as connection:
            counts = self._service(connection).get(batch_id).counts
        found = {state.value: n for state, n in counts.by_state.items() if state.value != "finished"}
        found |= {outcome.value: n for outcome, n in counts.by_outcome.items()}
        assert sum(found.values()) == counts.total
        assert counts.by_state.get("finished", 0) == sum(counts.by_outcome.values())
        return found

    def job_counts(self, batch_id: UUID) -> dict[str, dict[str, int]]:
        with self.world.engine.begin() as connection:
            jobs = self._service(connection).page_jobs_of(batch_id, after=None, limit=500)
        return {
            row.row.key: {
                **{s.value: n for s, n in row.counts.by_state.items() if s.value != "finished"},
                **{o.value: n for o, n in row.counts.by_outcome.items()},
            }
            for row in jobs
        }

    def batch(self, batch_id: UUID) -> dict[str, Any]:
        return self.world.execute("SELECT * FROM batches WHERE id = %(id)s", id=batch_id)[0]

    def job_id(self, batch_id: UUID, key: str) -> UUID:
        sql = "SELECT id FROM jobs WHERE batch_id = %(b)s AND key = %(k)s"
        return self.world.execute(sql, b=batch_id, k=key)[0]["id"]

    def trials(self, batch_id: UUID, key: str | None = None) -> list[dict[str, Any]]:
        """All rows, superseded ones too, in the order they were made."""
        sql = (
            "SELECT t.*, j.key FROM trials t JOIN jobs j ON j.id = t.job_id"
            " WHERE t.batch_id = %(b)s AND (%(k)s::text IS NULL OR j.key = %(k)s) ORDER BY t.seq"
        )
        return self.world.execute(sql, b=batch_id, k=key)

    def states(self, batch_id: UUID, key: str | None = None) -> Counter[str]:
        return Counter(row["outcome"] or row["state"] for row in self.trials(batch_id, key))

    def events(self, batch_id: UUID) -> list[tuple[int, str, str | None]]:
        sql = "SELECT n, kind, outcome FROM batch_events WHERE batch_id = %(b)s ORDER BY n"
        return [(row["n"], row["kind"], row["outcome"]) for row in self.world.execute(sql, b=batch_id)]

    def check_recount(self) -> None:
        """What is stored equals what the rows say: counters of batches and jobs, and unmet needs."""
        assert self._inbox() == 0, "the inbox has to be empty for this"
        assert self._differences() == []

    def _differences(self) -> Sequence[dict[str, Any]]:
        outcomes = ("passed", "failed", "error", "cancelled", "skipped")
        sums = ", ".join(f"count(*) FILTER (WHERE outcome = '{o}') AS {o}" for o in outcomes)
        stored = ", ".join(f"p.{o}" for o in outcomes)
        found = ", ".join(f"coalesce(r.{o}, 0)" for o in outcomes)
        sql = " UNION ALL ".join(
            f"SELECT p.{key} FROM {table} p LEFT JOIN (SELECT {key}, {sums} FROM trials"
            f" WHERE superseded_by IS NULL AND state = 'finished' GROUP BY {key}) r ON r.{key} = p.{key}"
            f" WHERE ({stored}) IS DISTINCT FROM ({found})"
            for table, key in (("batch_progress", "batch_id"), ("job_progress", "job_id"))
        )
        return self.world.execute(sql)

    def _inbox(self) -> int:
        return self.world.execute("SELECT count(*) AS n FROM batch_inbox")[0]["n"]

    def _service(self, connection: Any) -> BatchService:
        return BatchService(connection, self.tenant, store=BlobStore(Path("/nonexistent")))
