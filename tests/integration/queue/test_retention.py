"""Old batches go to the history, months are dropped whole, and nothing that is in use is ever touched."""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from core.blobstore import BlobStore
from core.errors import ArchivedError, InvalidRequestError, NotFoundError
from core.ids import new_id
from repositories.partitions import Month, Partition, PartitionRepository
from repositories.retention import RetentionRepository
from repositories.usage import UsageRepository
from services.batches import BatchService, NewBatch, NewJobs
from services.blobs import BlobService
from services.history import HistoryService
from services.jobspec import Input
from services.retention import Retention, RetentionPolicy
from services.trials import TrialService
from tests.integration.queue.test_webhooks import finish
from tests.support.queue import QueueWorld, make_spec

POLICY = RetentionPolicy(
    batch_days=30, artifact_days=30, log_days=30, history_days=400, delivery_days=14, blob_days=7
)
OLD = timedelta(days=31)
INFRA = '{"class": "infra", "code": "daemon_error", "message": "m"}'
DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def retention(world: QueueWorld, store: BlobStore) -> Retention:
    return Retention(world.engine, store, POLICY)


def finished_batch(world: QueueWorld, tenant: int, *, count: int = 1, age: timedelta = OLD, **end):
    trials = finish(world, tenant, count=count, **end)
    world.end_batches()
    batch = world.trial(trials[0])["batch_id"]
    world.execute(
        "UPDATE batches SET finished_at = clock_timestamp() - %(a)s WHERE id = %(b)s", a=age, b=batch
    )
    return batch, trials


def settle(retention: Retention) -> None:
    while retention.tick():
        pass


def count(world: QueueWorld, table: str) -> int:
    return world.execute(f"SELECT count(*) AS n FROM {table}")[0]["n"]


def test_old_batch_goes_to_the_history_whole(world, retention, store):
    tenant = world.tenant()
    batch, trials = finished_batch(world, tenant, count=3)
    kept, _ = finished_batch(world, tenant, age=timedelta(days=29))
    settle(retention)
    assert [row["id"] for row in world.execute("SELECT id FROM batches")] == [kept]
    for table in ("jobs", "trials", "attempts", "sandboxes", "log_heads"):
        assert count(world, table) == 1, table
    with world.engine.begin() as connection:
        history = HistoryService(connection, tenant)
        assert history.get_batch(batch).outcomes == {"passed": 3}
        page = history.page_trials(batch, after=None, limit=10)
        assert [row.id for row in page] == sorted(trials)
        assert (page[0].trial["outcome"], page[0].trial["job_key"], len(page[0].attempts)) == (
            "passed",
            "job",
            1,
        )
        with pytest.raises(ArchivedError):
            BatchService(connection, tenant, store=store).get(batch)
        with pytest.raises(ArchivedError):
            TrialService(connection, tenant).get(trials[0])
    stranger = world.tenant("stranger")
    with world.engine.begin() as connection:
        with pytest.raises(NotFoundError):
            BatchService(connection, stranger, store=store).get(batch)
        with pytest.raises(NotFoundError):
            HistoryService(connection, stranger).get_batch(batch)


def test_large_batch_goes_page_by_page_and_is_closed_from_the_first(world, retention, store, monkeypatch):
    monkeypatch.setattr("repositories.retention.PAGE", 2)
    tenant = world.tenant()
    batch, _ = finished_batch(world, tenant, count=5)
    with world.engine.begin() as connection:
        repository = RetentionRepository(connection)
        assert repository.mark_batches(age_seconds=1) == 1
    left = []
    while True:
        with world.engine.begin() as connection:
            page = RetentionRepository(connection).archive_page()
        if page is None:
            break
        left.append(count(world, "trials"))
        with world.engine.begin() as connection, pytest.raises(ArchivedError):
            BatchService(connection, tenant, store=store).get(batch)
    assert left == [3, 1, 0]
    assert count(world, "trial_history") == 5


def test_crash_in_the_middle_loses_nothing(world, retention, monkeypatch):
    tenant = world.tenant()
    finished_batch(world, tenant, count=2)
    monkeypatch.setattr("repositories.retention._DELETE_OF_BATCH", ("SELECT 1 / 0",))
    with pytest.raises(Exception, match="division"):
        retention.tick()
    assert (count(world, "trials"), count(world, "trial_history"), count(world, "usage_days")) == (2, 0, 0)
    monkeypatch.undo()
    settle(retention)
    assert (count(world, "trials"), count(world, "trial_history"), count(world, "batch_history")) == (0, 2, 1)


def test_open_batch_is_never_touched_however_old(world, retention):
    tenant = world.tenant()
    world.trials(tenant)
    world.execute("UPDATE batches SET created_at = clock_timestamp() - interval '10 years'")
    settle(retention)
    assert count(world, "trials") == 1


@pytest.mark.breaks_invariants(
    "batch_ends_early",
    "trials_miscounted",
    "jobs_miscounted",
    "batch_progress_wrong",
    "job_progress_wrong",
    reason="a finished batch with an open trial, as if somebody had begun one just now",
)
def test_batch_in_which_something_has_begun_again_is_left_alone(world, retention):
    tenant = world.tenant()
    batch, trials = finished_batch(world, tenant, count=2)
    with world.engine.begin() as connection:
        RetentionRepository(connection).mark_batches(age_seconds=1)
    late = new_id()
    world.execute(
        "INSERT INTO trials (id, tenant_id, batch_id, job_id, index, runtime, cpu_millicores, memory_bytes)"
        " SELECT %(id)s, tenant_id, batch_id, job_id, 7, runtime, cpu_millicores, memory_bytes"
        " FROM trials WHERE id = %(t)s",
        id=late,
        t=trials[0],
    )
    with world.engine.begin() as connection:
        assert not RetentionRepository(connection).archive_page().is_batch_done
    assert world.trial(late)["state"] == "queued"
    assert world.execute("SELECT archiving_at FROM batches WHERE id = %(b)s", b=batch) == [
        {"archiving_at": None}
    ]
    with world.engine.begin() as connection:
        assert RetentionRepository(connection).mark_batches(age_seconds=1) == 0


def test_what_was_used_is_the_same_before_and_after(world, retention):
    tenant = world.tenant()
    _, trials = finished_batch(world, tenant, count=3)
    world.execute(
        "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes, created_at)"
        " VALUES (%(t)s, 1, '/a', %(me)s, %(d)s, 77, now() - interval '40 days')",
        t=trials[0],
        me=tenant,
        d=DIGEST,
    )

    def usage() -> list:
        today = world.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS d")[0]["d"]
        with world.engine.begin() as connection:
            days = UsageRepository(connection).read([tenant], since=today, until=today + timedelta(days=1))
        return [(row.attempts, round(row.attempt_seconds, 6), row.artifact_bytes) for row in days]

    before = usage()
    assert before[0][0] == 3
    assert before[0][2] == 77
    with world.engine.begin() as connection:
        assert RetentionRepository(connection).expire_artifacts(age_seconds=1) == 1
    assert usage() == before
    settle(retention)
    assert count(world, "attempts") == 0
    assert usage() == before


def test_artifacts_of_what_still_runs_do_not_expire(world):
    tenant = world.tenant()
    trial = world.trials(tenant)[0]
    add = (
        "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes, created_at)"
        " VALUES (%(t)s, 1, '/a', %(me)s, %(d)s, 7, now() - interval '9 years')"
    )
    world.execute(add, t=trial, me=tenant, d=DIGEST)
    with world.engine.begin() as connection:
        assert RetentionRepository(connection).expire_artifacts(age_seconds=1) == 0


def test_archiver_knows_every_table_that_refers_to_what_it_deletes(world):
    rows = world.execute(
        "SELECT conrelid::regclass::text AS child, confrelid::regclass::text AS parent FROM pg_constraint"
        " WHERE contype = 'f' AND confdeltype = 'a'"
        " AND confrelid::regclass::text IN ('batches', 'jobs', 'trials', 'attempts')"
    )
    assert {(row["child"], row["parent"]) for row in rows} == {
        ("jobs", "batches"),
        ("trials", "batches"),
        ("batch_webhooks", "batches"),
        ("trials", "jobs"),
        ("attempts", "trials"),
        ("sandboxes", "attempts"),
        ("sandbox_sessions", "trials"),
    }, "let repositories/retention.py delete its rows, or give the key ON DELETE CASCADE"


def test_months_are_made_ahead_and_what_came_before_them_moves_in(world, retention):
    with world.engine.begin() as connection:
        repository = PartitionRepository(connection)
        this = Month.of(repository.now())
        last = repository.all_of("log_chunks")[-1]
        repository.drop(last)
    add = (
        "INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)"
        " VALUES (%(id)s, 1, 0, 'run', 'stdout', now(), 'x')"
    )
    late = last.month.first_id
    world.execute(add, id=late)
    assert [row["p"] for row in world.execute("SELECT tableoid::regclass::text AS p FROM log_chunks")] == [
        "log_chunks_default"
    ]
    retention.turn_months()
    retention.turn_months()
    assert [row["p"] for row in world.execute("SELECT tableoid::regclass::text AS p FROM log_chunks")] == [
        last.name
    ]
    with world.engine.begin() as connection:
        months = [p.month for p in PartitionRepository(connection).all_of("log_chunks")]
    assert months == [this.plus(n) for n in range(4)]


@pytest.mark.parametrize("table", ["log_chunks", "trial_events", "trial_history", "batch_history"])
def test_month_is_dropped_whole_once_its_time_is_over(world, store, table):
    retention = Retention(
        world.engine,
        store,
        RetentionPolicy(30, 30, log_days=30, history_days=30, delivery_days=1, blob_days=1),
    )
    first, later = _age_partitions(world, table, months=3)
    retention._drop_old(table)
    with world.engine.begin() as connection:
        left = PartitionRepository(connection).all_of(table)
    assert first not in left
    assert later in left


@pytest.mark.breaks_invariants(
    "trial_not_as_told", reason="a trial is given an id of long ago, without its events"
)
@pytest.mark.parametrize("table", ["log_chunks", "trial_events"])
def test_month_with_a_trial_that_needs_it_stays(world, store, table):
    retention = Retention(
        world.engine,
        store,
        RetentionPolicy(30, 30, log_days=30, history_days=30, delivery_days=1, blob_days=1),
    )
    first, _ = _age_partitions(world, table, months=3)
    tenant = world.tenant()
    trial = world.trials(tenant)[0]
    old = first.month.first_id
    world.execute("DELETE FROM trial_events")
    world.execute("SELECT 1 FROM trials WHERE id = %(t)s", t=trial)
    world.execute("UPDATE trials SET id = %(old)s WHERE id = %(t)s", old=old, t=trial)
    retention._drop_old(table)
    with world.engine.begin() as connection:
        assert first in PartitionRepository(connection).all_of(table)


def test_log_of_a_dropped_month_reads_as_cut(world, retention):
    tenant = world.tenant()
    trial = finish(world, tenant, next_seq=1, log_bytes=1)[0]
    world.execute(
        "INSERT INTO log_chunks (trial_id, fence, seq, step, stream, at, bytes)"
        " VALUES (%(id)s, 1, 0, 'run', 'stdout', now(), 'x')",
        id=trial,
    )
    head = "SELECT next_seq, bytes, truncated_bytes, closed FROM log_heads"
    with world.engine.begin() as connection:
        repository = PartitionRepository(connection)
        this = Month.of(repository.now())
        repository.empty_logs(this)
    assert [tuple(row.values()) for row in world.execute(head)] == [(1, 1, 0, True)]
    with world.engine.begin() as connection:
        PartitionRepository(connection).empty_logs(this.plus(1))
        connection.exec_driver_sql("DELETE FROM log_chunks")
    assert [tuple(row.values()) for row in world.execute(head)] == [(0, 0, 1, True)]


def _age_partitions(world: QueueWorld, table: str, *, months: int) -> tuple[Partition, Partition]:
    """Give a table months that are over, as if it had been there for long; the oldest and the newest of them."""
    with world.engine.begin() as connection:
        repository = PartitionRepository(connection)
        this = Month.of(repository.now())
        for partition in repository.all_of(table):
            repository.drop(partition)
        made = [Partition(table, this.plus(n)) for n in range(-months, 2)]
        for partition in made:
            repository.make(partition)
    return made[0], made[months]


def old_blob(world: QueueWorld, store: BlobStore, tenant: int, data: bytes = b"bytes") -> str:
    blob = store.put([data], max_bytes=100)
    with world.engine.begin() as connection:
        BlobService(connection, tenant, store).grant(blob)
    age(world, store, blob.digest)
    return blob.digest


def age(world: QueueWorld, store: BlobStore, digest: str) -> None:
    os.utime(store.path(digest), (time.time() - 8 * 86400,) * 2)
    world.execute("UPDATE blobs SET used_at = now() - interval '8 days' WHERE digest = %(d)s", d=digest)


def collect(retention: Retention, digest: str) -> None:
    retention.tick()
    retention._next_prefix = int(digest[7:9], 16)
    retention._collect_bytes()


def test_blob_that_nothing_uses_is_collected_and_a_used_one_stays(world, retention, store):
    tenant = world.tenant()
    unused, used = old_blob(world, store, tenant, b"unused"), old_blob(world, store, tenant, b"used")
    fresh = store.put([b"fresh"], max_bytes=100).digest
    with world.engine.begin() as connection:
        spec = make_spec(inputs=(Input("/a", blob=used),))
        BatchService(connection, tenant, store=store).create(
            NewBatch(name=None, labels={}, priority=0, implicit=False, jobs=NewJobs.of(spec))
        )
    for digest in (unused, used, fresh):
        collect(retention, digest)
    assert (store.has(unused), store.has(used), store.has(fresh)) == (False, True, True)
    assert [row["digest"] for row in world.execute("SELECT digest FROM blobs")] == [used]


def test_bytes_stay_while_another_tenant_or_an_artifact_has_them(world, retention, store):
    mine, other = world.tenant("mine"), world.tenant("other")
    shared = old_blob(world, store, mine, b"shared")
    with world.engine.begin() as connection:
        BlobService(connection, other, store).grant(store.put([b"shared"], max_bytes=10))
    kept = store.put([b"artifact"], max_bytes=10).digest
    trial = finish(world, mine)[0]
    world.execute(
        "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
        " VALUES (%(t)s, 1, '/a', 1, %(d)s, 8)",
        t=trial,
        d=kept,
    )
    for digest in (shared, kept):
        os.utime(store.path(digest), (1, 1))
        collect(retention, digest)
        assert store.has(digest)
    assert [row["tenant_id"] for row in world.execute("SELECT tenant_id FROM blobs")] == [other]


def test_submission_before_the_collector_keeps_the_blob(world, store):
    tenant = world.tenant()
    digest = old_blob(world, store, tenant)
    submission = world.engine.connect()
    spec = make_spec(inputs=(Input("/a", blob=digest),))
    batch = NewBatch(name=None, labels={}, priority=0, implicit=False, jobs=NewJobs.of(spec))
    BatchService(submission, tenant, store=store).create(batch)
    # Not committed yet: the collector passes the locked row over.
    with world.engine.begin() as connection:
        assert RetentionRepository(connection).delete_blobs(age_seconds=1) == 0
    submission.commit()
    submission.close()
    with world.engine.begin() as connection:
        assert RetentionRepository(connection).delete_blobs(age_seconds=1) == 0
    assert count(world, "blobs") == 1


def test_submission_after_the_collector_is_told_that_the_blob_is_gone(world, store):
    tenant = world.tenant()
    digest = old_blob(world, store, tenant)
    collector = world.engine.connect()
    assert RetentionRepository(collector).delete_blobs(age_seconds=1) == 1
    seen = []

    def submit() -> None:
        spec = make_spec(inputs=(Input("/a", blob=digest),))
        batch = NewBatch(name=None, labels={}, priority=0, implicit=False, jobs=NewJobs.of(spec))
        try:
            with world.engine.begin() as connection:
                BatchService(connection, tenant, store=store).create(batch)
        except InvalidRequestError as error:
            seen.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    time.sleep(0.2)
    collector.commit()
    collector.close()
    thread.join()
    assert [error.field for error in seen] == ["jobs[0].inputs[0].blob"]
    assert count(world, "jobs") == 0


def test_blob_sent_again_while_its_row_is_collected_is_kept(world, store):
    tenant = world.tenant()
    digest = old_blob(world, store, tenant)
    collector = world.engine.connect()
    assert RetentionRepository(collector).delete_blobs(age_seconds=1) == 1

    def send() -> None:
        blob = store.put([b"bytes"], max_bytes=100)
        with world.engine.begin() as connection:
            BlobService(connection, tenant, store).grant(blob)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.2)
    collector.commit()
    collector.close()
    thread.join()
    assert [row["digest"] for row in world.execute("SELECT digest FROM blobs")] == [digest]
    assert store.has(digest)


def test_blob_sent_again_is_as_new(world, retention, store):
    tenant = world.tenant()
    digest = old_blob(world, store, tenant)
    with world.engine.begin() as connection:
        BlobService(connection, tenant, store).grant(store.put([b"bytes"], max_bytes=100))
    collect(retention, digest)
    assert store.has(digest)
    assert count(world, "blobs") == 1


def test_messages_and_times_that_have_served_their_time_go(world, retention):
    tenant = world.tenant()
    endpoint = new_id()
    world.execute(
        "INSERT INTO webhook_endpoints (id, tenant_id, name, url, target, events, secret, deleted_at)"
        " VALUES (%(e)s, %(t)s, 'x', 'u', 't', '{}', '', now())",
        e=endpoint,
        t=tenant,
    )
    for days, state in ((15, "delivered"), (15, "dead"), (13, "dead")):
        world.execute(
            "INSERT INTO webhook_deliveries (id, tenant_id, endpoint_id, target, event, subject_id, payload, state,"
            " finished_at)"
            " VALUES (%(id)s, %(t)s, %(e)s, 't', 'trial.finished', %(id)s, '{}', %(s)s,"
            " now() - make_interval(days => %(d)s))",
            id=new_id(),
            t=tenant,
            e=endpoint,
            s=state,
            d=days,
        )
    settle(retention)
    assert (count(world, "webhook_deliveries"), count(world, "webhook_endpoints")) == (1, 1)
    world.execute("UPDATE webhook_deliveries SET finished_at = now() - interval '15 days'")
    settle(retention)
    assert (count(world, "webhook_deliveries"), count(world, "webhook_endpoints")) == (0, 0)


@pytest.mark.parametrize(
    ("change", "days", "stays"),
    [
        ("replayed_at = clock_timestamp() - interval '13 days', replayed_as = trial_id", 13, True),
        ("replayed_at = clock_timestamp() - interval '15 days', replayed_as = trial_id", 15, False),
        ("discarded_at = clock_timestamp() - interval '15 days'", 15, False),
        ("code = code", 399, True),
        ("code = code", 401, False),
    ],
    ids=["lately replayed", "replayed", "discarded", "open", "open for too long"],
)
def test_dead_letter_of_an_archived_trial_goes_when_its_time_is_over(world, retention, change, days, stays):
    finished_batch(world, world.tenant(), outcome="error", failure=INFRA)
    world.execute(
        f"UPDATE dead_letters SET {change}, created_at = clock_timestamp() - make_interval(days => %(d)s)",
        d=days,
    )
    settle(retention)
    assert count(world, "dead_letters") == int(stays)


def test_dead_letter_of_a_trial_that_is_there_stays_however_old(world, retention):
    finished_batch(world, world.tenant(), age=timedelta(days=1), outcome="error", failure=INFRA)
    world.execute(
        "UPDATE dead_letters SET created_at = clock_timestamp() - interval '500 days',"
        " discarded_at = clock_timestamp() - interval '400 days'"
    )
    settle(retention)
    assert count(world, "dead_letters") == 1
