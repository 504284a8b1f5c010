"""`max_queued` holds exactly, though what waits is counted only when a bound that is never too low is over it."""

import contextlib
import random

import pytest
from sqlalchemy.exc import OperationalError

from core.errors import QuotaExceededError
from repositories.tenants import TenantRepository
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld

WAITING = """
    SELECT (SELECT count(*) FROM trials
            WHERE tenant_id = %(t)s AND state IN ('blocked', 'paused', 'queued', 'retry_wait'))
           + (SELECT coalesce(sum(tail_count), 0) FROM jobs WHERE tenant_id = %(t)s AND tail_outcome IS NULL) AS n
"""


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every count of what waits."""
    made: list[int] = []
    count = TenantRepository.queue_room

    def queue_room(self, tenant_id):
        made.append(tenant_id)
        return count(self, tenant_id)

    monkeypatch.setattr(TenantRepository, "queue_room", queue_room)
    return made


def limit(batches: BatchWorld, number: int) -> None:
    batches.world.execute(
        "UPDATE tenants SET max_queued = %(n)s WHERE id = %(t)s", n=number, t=batches.tenant
    )


def waiting(batches: BatchWorld) -> int:
    return int(batches.world.execute(WAITING, t=batches.tenant)[0]["n"])


def at_most(batches: BatchWorld) -> int | None:
    rows = batches.world.execute("SELECT at_most FROM queue_bounds WHERE tenant_id = %(t)s", t=batches.tenant)
    return rows[0]["at_most"] if rows else None


def test_what_waits_is_counted_once_as_long_as_there_is_room(batches: BatchWorld, counts: list[int]):
    for number in range(5):
        batches.submit(job(f"a{number}", 3))
    # Before the work of the first insert, and after it.
    assert len(counts) == 2
    assert at_most(batches) == 15


def test_the_limit_is_met_to_the_trial(batches: BatchWorld, counts: list[int]):
    limit(batches, 5)
    batches.submit(job("a", 3))
    with pytest.raises(QuotaExceededError):
        batches.submit(job("b", 3))
    batches.submit(job("c", 2))
    with pytest.raises(QuotaExceededError):
        batches.submit(job("d"))
    assert waiting(batches) == 5


def test_what_has_run_makes_room_again(batches: BatchWorld):
    limit(batches, 5)
    batches.submit(job("a", 5))
    batches.run()
    assert at_most(batches) == 5
    batches.submit(job("b", 5))
    assert (waiting(batches), at_most(batches)) == (5, 5)


def test_what_runs_and_may_come_back_is_in_the_bound(batches: BatchWorld):
    batches.submit(job("a", 4))
    batches.start()
    batches.world.execute("DELETE FROM queue_bounds")
    batches.submit(job("b", 1))
    assert (waiting(batches), at_most(batches)) == (1, 5)


def test_a_refused_submission_leaves_the_bound_alone(batches: BatchWorld):
    limit(batches, 5)
    batches.submit(job("a", 4))
    with pytest.raises(QuotaExceededError):
        batches.submit(job("b", 2))
    assert at_most(batches) == 4


def test_a_lowered_limit_holds_at_once(batches: BatchWorld):
    batches.submit(job("a", 4))
    limit(batches, 4)
    with pytest.raises(QuotaExceededError):
        batches.submit(job("b"))


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_never_too_low(batches: BatchWorld, seed: int):
    """Whatever trials do: submitted, started, lost, tried again, paused, cancelled, retried, in any order."""
    rng = random.Random(seed)
    limit(batches, 60)
    ids: list = []

    def submit() -> None:
        ids.append(batches.submit(job(f"j{len(ids)}", rng.randint(1, 12))))

    def lose() -> None:
        execute = batches.world.execute
        execute("UPDATE attempts SET state = 'never_started', finished_at = now() WHERE state = 'dispatched'")
        execute(
            "UPDATE trials SET state = 'queued', attempts_used = attempts_used - 1 WHERE state = 'running'"
        )

    def verb(name: str, *arguments) -> None:
        if ids:
            batches.verb(name, "batch", rng.choice(ids), *arguments)

    actions = [
        submit,
        submit,
        batches.world.dispatcher.tick,
        lose,
        batches.run,
        lambda: verb("pause"),
        lambda: verb("resume"),
        lambda: verb("retry", ["cancelled", "passed"]),
    ]
    for _ in range(40):
        with contextlib.suppress(QuotaExceededError):
            rng.choice(actions)()
        assert waiting(batches) <= 60
        assert at_most(batches) is None or at_most(batches) >= waiting(batches)


def test_nobody_counts_while_somebody_has_added_and_not_yet_committed(batches: BatchWorld):
    """Else the count would miss what was added, and the bound that is noted after it would be too low."""
    batches.submit(job("a", 3))
    with batches.world.engine.begin() as adding:
        assert TenantRepository(adding).add_to_bound(batches.tenant, 2)
        with batches.world.engine.begin() as counting:
            counting.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                TenantRepository(counting).lock_queue(batches.tenant)
    with batches.world.engine.begin() as counting:
        TenantRepository(counting).lock_queue(batches.tenant)
    assert at_most(batches) == 5
