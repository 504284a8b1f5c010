"""Keeps the database and the blob store from growing for ever: moves, deletes, drops months, collects blobs."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from core.blobstore import BlobStore
from core.logging import get_logger
from models.retention import PARTITIONED
from repositories.partitions import Month, Partition, PartitionRepository
from repositories.retention import PAGE, RetentionRepository

__all__ = ["Retention", "RetentionPolicy"]

log = get_logger(__name__)

_MONTHS_AHEAD = 3
_DAY = 86400.0
_HISTORIES = {"trial_history", "batch_history"}


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Days; see the settings of the same names."""

    batch_days: float
    artifact_days: float
    log_days: float
    history_days: float
    delivery_days: float
    blob_days: float


class Retention:
    """One object per process, used by one thread. Every step is a transaction of its own, small and repeatable."""

    def __init__(self, engine: Engine, store: BlobStore, policy: RetentionPolicy) -> None:
        """store: where the bytes of blobs are."""
        self._engine = engine
        self._store = store
        self._policy = policy
        self._next_prefix = 0

    def tick(self) -> bool:
        """Do one page of everything; True if there is more to do at once."""
        policy = self._policy
        is_full = [
            self._step("batches_archiving", lambda r: r.mark_batches(age_seconds=policy.batch_days * _DAY))
            >= 100,
            self._archive(),
            self._page(
                "artifacts_expired", lambda r: r.expire_artifacts(age_seconds=policy.artifact_days * _DAY)
            ),
            self._page(
                "deliveries_deleted", lambda r: r.delete_deliveries(age_seconds=policy.delivery_days * _DAY)
            ),
            self._page(
                "dead_letters_deleted",
                lambda r: r.delete_dead_letters(
                    settled_seconds=policy.delivery_days * _DAY, open_seconds=policy.history_days * _DAY
                ),
            ),
            self._page("fires_deleted", lambda r: r.delete_fires(age_seconds=policy.delivery_days * _DAY)),
            self._page("blobs_released", lambda r: r.delete_blobs(age_seconds=policy.blob_days * _DAY)),
        ]
        self._collect_bytes()
        return any(is_full)

    def turn_months(self) -> None:
        """Make the partitions of the months to come, and drop those whose time is over."""
        with self._engine.begin() as connection:
            this_month = Month.of(PartitionRepository(connection).now())
        for table in PARTITIONED:
            with self._engine.begin() as connection:
                there = set(PartitionRepository(connection).all_of(table))
            for ahead in range(_MONTHS_AHEAD + 1):
                partition = Partition(table, this_month.plus(ahead))
                if partition not in there:
                    self._make(partition)
            self._drop_old(table)

    def _make(self, partition: Partition) -> None:
        with self._engine.begin() as connection:
            PartitionRepository(connection).make(partition)
        log.info("partition_made", partition=partition.name)

    def _drop_old(self, table: str) -> None:
        """Drop from the oldest on; each is a transaction, so that a lock is held on one table only."""
        while True:
            with self._engine.begin() as connection:
                repository = PartitionRepository(connection)
                partitions = repository.all_of(table)
                # The last one stays: the next months are found by it.
                if len(partitions) < 2 or not self._is_over(repository, partitions[0]):
                    return
                if table == "log_chunks":
                    repository.empty_logs(partitions[0].month.plus(1))
                repository.drop(partitions[0])
            log.info("partition_dropped", partition=partitions[0].name)

    def _is_over(self, repository: PartitionRepository, oldest: Partition) -> bool:
        """Say whether nobody needs a month, and those before it, any more."""
        end = oldest.month.plus(1)
        age_days = (repository.now() - end.start).total_seconds() / _DAY
        if oldest.table in _HISTORIES:
            return age_days > self._policy.history_days
        if oldest.table == "log_chunks":
            return age_days > self._policy.log_days and not repository.needs_logs(
                end, None, days=self._policy.log_days
            )
        return age_days > self._policy.history_days and not repository.has_trials(end, None)

    def _archive(self) -> bool:
        with self._engine.begin() as connection:
            page = RetentionRepository(connection).archive_page()
        if page is not None:
            log.info(
                "batch_archived", batch_id=str(page.batch_id), trials=page.trials, is_done=page.is_batch_done
            )
        return page is not None

    def _page(self, event: str, action: Callable[[RetentionRepository], int]) -> bool:
        return self._step(event, action) >= PAGE

    def _step(self, event: str, action: Callable[[RetentionRepository], int]) -> int:
        with self._engine.begin() as connection:
            count = action(RetentionRepository(connection))
        if count:
            log.info(event, count=count)
        return count

    def _collect_bytes(self) -> None:
        """Look through one of the 256 folders of the blob store for bytes that nobody may read any more."""
        prefix = f"{self._next_prefix:02x}"
        self._next_prefix = (self._next_prefix + 1) % 256
        age = self._policy.blob_days * _DAY
        old = self._store.old_digests(prefix, age_seconds=age)
        removed = 0
        for start in range(0, len(old), PAGE):
            page = old[start : start + PAGE]
            with self._engine.begin() as connection:
                unknown = set(page) - RetentionRepository(connection).known_digests(page)
            removed += sum(self._remove(digest, age) for digest in sorted(unknown))
        if removed:
            log.info("blobs_collected", prefix=prefix, count=removed)

    def _remove(self, digest: str, age_seconds: float) -> bool:
        def is_used() -> bool:
            with self._engine.begin() as connection:
                return self._is_known(connection, digest)

        return self._store.remove_unused(digest, age_seconds=age_seconds, is_used=is_used)

    def _is_known(self, connection: Connection, digest: str) -> bool:
        return bool(RetentionRepository(connection).known_digests([digest]))
