"""The rows by which the next worker of a node takes over what the last one ran."""

import json

import pytest

from repositories.attempts import AttemptRepository, ClaimedAttempt
from repositories.sessions import SessionRepository
from services.reaping import Reaper
from tests.support.queue import QueueWorld, Seat

BOOT = "a-boot"


@pytest.fixture
def reaper(world: QueueWorld) -> Reaper:
    return Reaper(world.engine, lease_grace_seconds=5.0)


@pytest.fixture
def first(world: QueueWorld) -> Seat:
    return world.session(boot_id=BOOT)


def start_one(world: QueueWorld, seat: Seat, *, progress: str | None = None) -> ClaimedAttempt:
    world.trials(world.tenant())
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[-1])
    assert claimed is not None
    if progress is not None:
        assert seat.start(claimed, progress=progress)
    return claimed


def adopt(world: QueueWorld, seat: Seat, *, boot_id: str = BOOT, runtimes=("fake",)) -> list[ClaimedAttempt]:
    with world.engine.begin() as connection:
        return AttemptRepository(connection).adopt(
            session_id=seat.session_id, node_id=seat.node_id, boot_id=boot_id, runtimes=runtimes
        )


def succeed(world: QueueWorld, seat: Seat, **changes) -> Seat:
    return world.session(node=seat.node_id, **{"boot_id": BOOT, **changes})


def test_successor_takes_over_and_the_old_session_is_fenced_off(world: QueueWorld, first, reaper):
    claimed = start_one(world, first, progress=json.dumps({"step": 0}))
    second = succeed(world, first)
    assert reaper.reap() == 0  # it is left to the successor
    (adopted,) = adopt(world, second)
    assert (adopted.trial_id, adopted.fence, adopted.number) == (claimed.trial_id, 1, 1)
    assert (adopted.state, adopted.progress) == ("running", {"step": 0})
    assert 0 < adopted.total_left_seconds <= 60
    assert adopted.elapsed_seconds > 0
    assert not first.finish(claimed)
    assert second.finish(adopted)
    row = world.trial(claimed.trial_id)
    assert (row["outcome"], row["attempts_used"], row["infra_losses"]) == ("passed", 1, 0)


def test_only_one_of_two_successors_gets_an_attempt(world: QueueWorld, first):
    start_one(world, first, progress="{}")
    second = succeed(world, first)
    third = succeed(world, first)
    assert len(adopt(world, third)) == 1
    assert adopt(world, third) == []
    assert adopt(world, second) == []


def test_successor_of_a_successor_that_died_at_once_takes_over(world: QueueWorld, first):
    start_one(world, first, progress="{}")
    assert len(adopt(world, succeed(world, first))) == 1
    assert len(adopt(world, succeed(world, first))) == 1
    assert world.execute("SELECT adoptions FROM attempts") == [{"adoptions": 2}]


@pytest.mark.parametrize("case", ["another boot", "another node", "no boot"])
def test_others_get_nothing(world: QueueWorld, first, case):
    start_one(world, first, progress="{}")
    if case == "another boot":
        assert adopt(world, succeed(world, first, boot_id="b-boot"), boot_id="b-boot") == []
    elif case == "another node":
        assert adopt(world, world.session(boot_id=BOOT)) == []
    else:
        world.execute("UPDATE worker_sessions SET boot_id = NULL")
        assert adopt(world, succeed(world, first)) == []


def test_after_another_boot_all_is_lost_at_once(world: QueueWorld, first, reaper):
    start_one(world, first, progress="{}")
    succeed(world, first, boot_id="b-boot")
    assert reaper.reap(lapsed_sessions=False) == 1


def test_what_the_old_lease_no_longer_covers_is_not_adopted_and_lost_after_the_grace(
    world: QueueWorld, first, reaper
):
    start_one(world, first, progress="{}")
    second = succeed(world, first)
    shift = (
        "UPDATE worker_sessions SET adoptable_until = clock_timestamp() - interval '{} s' WHERE id = %(id)s"
    )
    world.execute(shift.format(1), id=first.session_id)
    assert adopt(world, second) == []
    assert reaper.reap() == 0
    world.execute(shift.format(6), id=first.session_id)
    assert reaper.reap() == 1


def test_what_the_successor_gives_up_is_lost_at_once(world: QueueWorld, first, reaper):
    claimed = start_one(world, first, progress="{}")
    second = succeed(world, first)
    with world.engine.begin() as connection:
        SessionRepository(connection).give_up_rest(second.node_id)
    assert adopt(world, second) == []
    assert reaper.reap(lapsed_sessions=False) == 1
    assert world.trial(claimed.trial_id)["state"] == "queued"


def test_successor_whose_own_lease_has_lapsed_adopts_nothing(world: QueueWorld, first):
    start_one(world, first, progress="{}")
    second = succeed(world, first)
    world.execute("UPDATE worker_sessions SET lease_until = now() WHERE id = %(id)s", id=second.session_id)
    assert adopt(world, second) == []


def test_sandboxes_that_end_with_their_worker_are_adopted_only_before_they_run(world: QueueWorld, first):
    start_one(world, first)
    assert len(adopt(world, succeed(world, first), runtimes=())) == 1
    world.execute("UPDATE attempts SET state = 'running'")
    assert adopt(world, succeed(world, first), runtimes=()) == []


def test_attempt_that_workers_die_of_is_given_up(world: QueueWorld, first, reaper):
    start_one(world, first, progress="{}")
    taken = [len(adopt(world, succeed(world, first))) for _ in range(6)]
    assert taken == [1, 1, 1, 1, 1, 0]
    with world.engine.begin() as connection:
        SessionRepository(connection).give_up_rest(first.node_id)
    assert reaper.reap() == 1


def test_adoptions_long_after_each_other_are_not_counted(world: QueueWorld, first):
    start_one(world, first, progress="{}")
    for _ in range(7):
        assert len(adopt(world, succeed(world, first))) == 1
        world.execute("UPDATE attempts SET adopted_at = adopted_at - interval '6 min'")
