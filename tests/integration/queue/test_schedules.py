"""Times of schedules: each once, whoever fires, and late ones by the policy."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.blobstore import BlobStore
from services.batches import BatchService, NewBatch, NewJobs
from services.sandbox_caps import SandboxCaps
from services.schedule_firing import ScheduleFirer
from services.schedules import NewSchedule, ScheduleService
from tests.support.queue import QueueWorld, make_spec

STORE = BlobStore(Path("never-written"))
BATCH = NewBatch(name="nightly", labels={}, priority=0, implicit=False, jobs=NewJobs.of(make_spec()))


@pytest.fixture
def firer(world: QueueWorld) -> ScheduleFirer:
    return ScheduleFirer(world.engine, STORE, default_runtime="fake")


def add(world: QueueWorld, tenant: int, *, due: timedelta | None = None, **changes: Any):
    """Add a schedule; due: since when its next time has been due."""
    values: dict[str, Any] = {
        "name": "nightly",
        "cron": "* * * * *",
        "timezone": "UTC",
        "template": {},
        "batch": BATCH,
        "catch_up": "none",
        "overlap": "allow",
    }
    with world.engine.begin() as connection:
        row = ScheduleService(connection, tenant, store=STORE).create(NewSchedule(**{**values, **changes}))
    if due is not None:
        moment = (datetime.now(UTC) - due).replace(second=0, microsecond=0)
        world.execute("UPDATE schedules SET next_fire_at = %(at)s WHERE id = %(id)s", at=moment, id=row.id)
    return row


def fires(world: QueueWorld) -> list[dict]:
    return world.execute("SELECT * FROM schedule_fires ORDER BY fire_at")


def outcomes(world: QueueWorld) -> list[str]:
    return [row["outcome"] for row in fires(world)]


def batches(world: QueueWorld) -> int:
    return world.execute("SELECT count(*) AS n FROM batches")[0]["n"]


def test_time_that_has_come_submits_the_batch_and_the_next_is_set(world, firer):
    tenant = world.tenant()
    add(world, tenant, due=timedelta())
    assert firer.tick() == 1
    assert firer.tick() == 0
    row = fires(world)[0]
    batch = world.execute("SELECT id, name, tenant_id FROM batches")[0]
    assert (row["outcome"], row["batch_id"], batch["name"], batch["tenant_id"]) == (
        "submitted",
        batch["id"],
        "nightly",
        tenant,
    )
    assert world.states(tenant) == ["queued"]
    later = world.execute("SELECT next_fire_at > clock_timestamp() AS is_later FROM schedules")[0]
    assert later["is_later"]


def test_what_is_not_due_does_not_fire(world, firer):
    add(world, world.tenant())
    assert firer.tick() == 0
    assert fires(world) == []


@pytest.mark.parametrize(
    ("catch_up", "submitted"), [("none", [False] * 5), ("one", [False] * 4 + [True]), ("all", [True] * 5)]
)
def test_times_that_passed_while_nobody_fired(world, firer, catch_up, submitted):
    add(world, world.tenant(), due=timedelta(hours=5), cron="0 */1 * * *", catch_up=catch_up)
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    world.execute("UPDATE schedules SET next_fire_at = %(at)s, cron = %(cron)s", at=first, cron="0 * * * *")
    # The current hour began a moment ago, or a while: it is not what is looked at here.
    world.execute("UPDATE schedules SET cron = %(c)s", c=_all_but_this_hour())
    firer.tick()
    assert outcomes(world) == ["submitted" if is_submitted else "missed" for is_submitted in submitted]
    assert batches(world) == sum(submitted)


def _all_but_this_hour() -> str:
    now = datetime.now(UTC)
    return f"0 {','.join(str(hour) for hour in range(24) if hour != now.hour)} * * *"


def test_time_just_missed_is_on_time(world, firer):
    add(world, world.tenant(), due=timedelta(seconds=0), catch_up="none")
    assert firer.tick() == 1
    assert outcomes(world) == ["submitted"]


def test_years_of_minutes_are_bounded(world, firer):
    add(world, world.tenant(), due=timedelta(days=3), catch_up="all")
    assert firer.tick() == 100
    assert outcomes(world) == ["submitted"] * 100


def test_overlap_is_skipped_until_the_batch_before_has_ended(world, firer):
    tenant = world.tenant()
    row = add(world, tenant, due=timedelta(), overlap="skip", catch_up="all")
    assert firer.tick() == 1
    again = timedelta(minutes=1)
    world.execute("UPDATE schedules SET next_fire_at = next_fire_at - %(m)s", m=2 * again)
    moment = world.execute("SELECT next_fire_at FROM schedules WHERE id = %(id)s", id=row.id)[0][
        "next_fire_at"
    ]
    assert firer.tick() == 0
    skipped = [f for f in fires(world) if f["outcome"] == "overlapped"]
    assert [f["fire_at"] for f in skipped] == [moment]
    world.execute("DELETE FROM schedule_fires WHERE outcome = 'overlapped'")
    world.execute(
        "UPDATE trials SET state = 'finished', outcome = 'cancelled', finished_at = now() WHERE state = 'queued'"
    )
    world.end_batches()
    world.execute("UPDATE schedules SET next_fire_at = %(at)s", at=moment)
    assert firer.tick() == 1


def test_two_schedulers_fire_each_time_once(world):
    tenant = world.tenant()
    for number in range(10):
        add(world, tenant, due=timedelta(), name=f"s{number}")
    firers = [ScheduleFirer(world.engine, STORE, default_runtime="fake") for _ in range(3)]
    start = threading.Barrier(3)
    counts = []

    def run(firer: ScheduleFirer) -> None:
        start.wait()
        counts.append(firer.tick())

    threads = [threading.Thread(target=run, args=(firer,)) for firer in firers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(counts), batches(world)) == (10, 10)


def test_time_that_has_fired_fires_not_again_though_it_looks_due(world, firer):
    add(world, world.tenant(), due=timedelta())
    moment = world.execute("SELECT next_fire_at FROM schedules")[0]["next_fire_at"]
    assert firer.tick() == 1
    world.execute("UPDATE schedules SET next_fire_at = %(at)s", at=moment)
    firer.tick()
    assert [row["fire_at"] for row in fires(world)].count(moment) == 1
    assert batches(world) == len(fires(world))


def test_crash_between_batch_and_time_leaves_neither(world, firer, monkeypatch):
    add(world, world.tenant(), due=timedelta())
    monkeypatch.setattr("repositories.schedules.DueRepository.set_next", lambda *_: 1 / 0)
    assert firer.tick() == 0
    assert (fires(world), batches(world)) == ([], 0)
    monkeypatch.undo()
    assert firer.tick() == 1


def test_one_that_cannot_be_fired_stands_in_nobodys_way(world, firer):
    tenant = world.tenant()
    broken = add(world, tenant, due=timedelta(minutes=1), name="broken")
    add(world, tenant, due=timedelta(), name="good")
    world.execute("UPDATE schedules SET batch = '{}' WHERE id = %(id)s", id=broken.id)
    assert firer.tick() == 1
    assert batches(world) == 1


def test_refusal_is_noted_and_leaves_nothing(world, firer):
    tenant = world.tenant(max_queued=0)
    add(world, tenant, due=timedelta())
    assert firer.tick() == 0
    row = fires(world)[0]
    assert (row["outcome"], row["batch_id"]) == ("refused", None)
    assert "queued" in row["detail"]
    assert batches(world) == 0


def test_jobs_above_a_cap_that_came_later_are_refused(world):
    add(world, world.tenant(), due=timedelta())
    assert ScheduleFirer(world.engine, STORE, default_runtime="fake", caps=SandboxCaps(pids=10)).tick() == 0
    assert fires(world)[0]["detail"].startswith("jobs[0].resources.pids: is 256; ")


def test_paused_schedule_fires_not_and_catches_nothing_up(world, firer):
    tenant = world.tenant()
    row = add(world, tenant, due=timedelta(hours=1), catch_up="all")
    with world.engine.begin() as connection:
        ScheduleService(connection, tenant, store=STORE).pause(row.id)
    assert firer.tick() == 0
    with world.engine.begin() as connection:
        resumed = ScheduleService(connection, tenant, store=STORE).resume(row.id)
    assert resumed.next_fire_at > datetime.now(UTC) - timedelta(seconds=1)
    assert fires(world) == []


def test_batch_of_a_schedule_is_a_batch_like_any_other(world, firer):
    tenant = world.tenant()
    add(world, tenant, due=timedelta())
    firer.tick()
    batch_id = fires(world)[0]["batch_id"]
    with world.engine.begin() as connection:
        summary = BatchService(connection, tenant, store=STORE).get(batch_id)
    assert (summary.row.state, summary.counts.total) == ("running", 1)
