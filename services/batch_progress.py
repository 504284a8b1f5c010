"""Takes ends of trials into the progress of their batches: counters, events, needs, stop rules, the batch's own end.

Ends come from an inbox that a trigger fills in the transaction of the end, so none is forgotten and none counts twice,
whoever is killed when. Whatever an end sets off is done in the transaction that counts it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.failpoints import failpoint
from core.logging import get_logger
from repositories.batch_progress import PAGE, BatchProgressRepository, EndedJob
from repositories.dispatch import DispatchRepository
from repositories.trial_ending import MetTrial, TrialEndingRepository
from services.early_ends import NEEDS_UNMET, batch_rule_end, job_rule_end

__all__ = ["BatchProgressKeeper", "ProgressTold"]

log = get_logger(__name__)

_DEPENDENTS = 500
"""Jobs told at a time that their needs are met or cannot be: the dispatch lock is not held for longer than that."""

_FORCE_AFTER_SECONDS = 20.0
"""So long after its grace a trial that was ended gracefully is killed: the time to keep its files."""


@dataclass(frozen=True, slots=True)
class ProgressTold:
    """Who hears of progress, after the commit; each call may be lost without harm.

    stopped: trials to be ended, by the node they run on. moved: batches with new events. queued: trials may start that
    could not.
    """

    stopped: Callable[[Mapping[UUID, Sequence[UUID]]], None]
    moved: Callable[[Iterable[UUID]], None]
    queued: Callable[[], None]


class BatchProgressKeeper:
    """Rolls up progress; one in the installation is enough, two do no harm."""

    def __init__(self, engine: Engine, told: ProgressTold) -> None:
        """engine: its connections write events as the scheduler."""
        self._engine = engine
        self._told = told

    def advance(self) -> bool:
        """Take a page of the inbox. True: more waits.

        Most batches have no rule by which one trial moves another: they are counted without the dispatch lock.
        """
        touched, ruled = self._count_plain()
        if ruled:
            touched += self._count_ruled(ruled)
            self._told.queued()
        if touched:
            self._told.moved(touched)
        return len(touched) > 0 and self._is_more()

    def force_overdue(self) -> int:
        """Kill what was to end gracefully and did not; gives how many."""
        with self._engine.begin() as connection:
            DispatchRepository(connection).lock()
            met = TrialEndingRepository(connection).force_overdue(slack_seconds=_FORCE_AFTER_SECONDS)
        if met:
            log.warning("cancels_forced", count=len(met))
            self._tell_stopped(met)
        return len(met)

    def _is_more(self) -> bool:
        with self._engine.begin() as connection:
            return bool(BatchProgressRepository(connection).waiting_entries(1))

    def _count_plain(self) -> tuple[list[UUID], dict[UUID, list[int]]]:
        """Count the batches without rules; gives them, and the entries of those with rules."""
        with self._engine.begin() as connection:
            repository = BatchProgressRepository(connection)
            entries = repository.waiting_entries(PAGE)
            if not entries:
                return [], {}
            locked = repository.lock_batches(sorted({batch_id for _, batch_id in entries}))
            numbers = [n for n, _ in entries]
            # Asked with the lock held: an edge that is being appended is seen, or its batch was passed over.
            ruled = set(repository.ruled(locked, numbers))
            plain = [batch_id for batch_id in locked if batch_id not in ruled]
            if plain:
                repository.take(plain, numbers)
                repository.finish(plain)
            failpoint("progress.before_commit")
        failpoint("progress.after_commit")
        waiting: dict[UUID, list[int]] = {}
        for n, batch_id in entries:
            if batch_id in ruled:
                waiting.setdefault(batch_id, []).append(n)
        return plain, waiting

    def _count_ruled(self, waiting: Mapping[UUID, Sequence[int]]) -> list[UUID]:
        with self._engine.begin() as connection:
            DispatchRepository(connection).lock()
            repository = BatchProgressRepository(connection)
            locked = repository.lock_batches(sorted(waiting))
            taken = repository.take(locked, [n for entries in waiting.values() for n in entries])
            met = _apply_rules(connection, locked, taken)
            repository.finish(locked)
            failpoint("progress.ruled_before_commit")
        failpoint("progress.ruled_after_commit")
        self._tell_stopped(met)
        return locked

    def _tell_stopped(self, met: Iterable[MetTrial]) -> None:
        nodes: dict[UUID, list[UUID]] = {}
        for trial in met:
            if trial.node_id is not None:
                nodes.setdefault(trial.node_id, []).append(trial.trial_id)
        if nodes:
            self._told.stopped(nodes)


def _apply_rules(
    connection: Connection, batch_ids: Sequence[UUID], taken: Sequence[tuple[UUID, UUID | None]]
) -> list[MetTrial]:
    """Do what the ends just counted set off; gives trials that are to stop. Needs the dispatch lock."""
    repository = BatchProgressRepository(connection)
    ending = TrialEndingRepository(connection)
    jobs = sorted({job_id for _, job_id in taken if job_id is not None})
    met: list[MetTrial] = []
    for rule in repository.stop_batches(batch_ids):
        met += ending.end_batches([rule.id], batch_rule_end(rule.stop_reason, rule.number))[0]
        repository.add_event([rule.id], "batch.stopped", detail={rule.stop_reason: rule.number})
        log.info("batch_stopped", batch_id=str(rule.id), outcome=rule.stop_reason, number=rule.number)
    stopped = repository.stop_jobs(jobs)
    for stop in ("first_pass", "first_fail"):
        ids = [job.id for job in stopped if job.stop == stop]
        if ids:
            met += ending.end_jobs(ids, job_rule_end(stop))[0]
    _resolve_needs(connection, repository.ended(jobs))
    return met


def _resolve_needs(connection: Connection, ended: Sequence[EndedJob]) -> None:
    """Move the jobs that need ended ones: let them queue, skip them, or count down. What is left, is done next time."""
    if not ended:
        return
    repository = BatchProgressRepository(connection)
    changes = repository.changed_needs([job.id for job in ended], limit=_DEPENDENTS)
    repository.set_unmet(changes)
    free = [change.job_id for change in changes if change.unmet == 0]
    if free:
        repository.unblock(free)
    impossible = [change.job_id for change in changes if change.is_impossible]
    if impossible:
        TrialEndingRepository(connection).skip_blocked(impossible, NEEDS_UNMET)
    if len(changes) == _DEPENDENTS:
        for batch_id in sorted({job.batch_id for job in ended}):
            repository.look_at(batch_id, [job.id for job in ended if job.batch_id == batch_id])
