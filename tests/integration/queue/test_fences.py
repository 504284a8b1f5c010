"""What a ghost may not do. Each test turns red when its guard is taken out of the statement or the schema."""

import pytest
from sqlalchemy.exc import IntegrityError

from core.ids import new_id
from tests.support.queue import QueueWorld


@pytest.fixture
def bell(world: QueueWorld):
    world.seat = world.session()
    world.trials(world.tenant())
    world.dispatcher.tick()
    return world.bells.rung[0]


def test_second_copy_of_a_bell_claims_nothing(world: QueueWorld, bell):
    assert world.seat.claim(bell) is not None
    assert world.seat.claim(bell) is None


def test_bell_for_another_node_claims_nothing(world: QueueWorld, bell):
    other = world.session()
    assert other.claim(bell) is None


def test_session_without_a_valid_lease_claims_nothing(world: QueueWorld, bell):
    world.execute("UPDATE worker_sessions SET lease_until = now() - interval '1 second'")
    assert world.seat.claim(bell) is None


def test_ended_session_claims_nothing(world: QueueWorld, bell):
    world.execute("UPDATE worker_sessions SET ended_at = now()")
    assert world.seat.claim(bell) is None


def test_claim_writes_the_sandbox_before_it_is_made(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    (row,) = world.execute("SELECT name, state, image, runtime FROM sandboxes")
    assert row == {"name": claimed.sandbox_name, "state": "creating", "image": "fake", "runtime": "fake"}


def test_finish_needs_the_session_that_claimed(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    world.seat.start(claimed)
    ghost = world.session()

    assert not ghost.finish(claimed)
    assert world.seat.finish(claimed)
    assert world.trial(bell.trial_id)["outcome"] == "passed"


def test_finish_of_an_older_fence_changes_nothing(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    world.seat.start(claimed)
    world.execute("UPDATE attempts SET state = 'lost'")
    world.execute("UPDATE trials SET state = 'queued'")
    world.dispatcher.tick()

    assert not world.seat.finish(claimed)
    assert world.trial(bell.trial_id)["state"] == "running"


def test_finish_of_an_older_fence_does_not_end_the_newer_attempt_of_the_same_session(world: QueueWorld, bell):
    """The session is the same, so only the fence tells the two apart."""
    older = world.seat.claim(bell)
    world.seat.start(older)
    world.execute("UPDATE attempts SET state = 'lost', finished_at = clock_timestamp()")
    world.execute("UPDATE trials SET state = 'queued'")
    world.dispatcher.tick()
    newer = world.seat.claim(world.bells.rung[-1])
    assert newer.fence == 2
    world.seat.start(newer)

    assert not world.seat.finish(older)
    assert world.trial(bell.trial_id)["state"] == "running"
    assert world.seat.finish(newer)


def test_finish_twice_ends_once(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    world.seat.start(claimed)
    assert world.seat.finish(claimed)
    assert not world.seat.finish(claimed, outcome="failed", reason="late")
    assert world.trial(bell.trial_id)["outcome"] == "passed"


def test_database_refuses_a_second_live_attempt(world: QueueWorld, bell):
    with pytest.raises(IntegrityError, match="attempts_one_live_idx"):
        world.execute(
            "INSERT INTO attempts (trial_id, fence, id, number, tenant_id, node_id, cpu_millicores, memory_bytes,"
            " start_deadline) SELECT trial_id, 99, %(id)s, 2, tenant_id, node_id, 1, 1, now() FROM attempts",
            id=new_id(),
        )


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE trials SET state = 'retry_wait'", 'trial may not go from "queued" to "retry_wait"'),
        ("UPDATE trials SET state = 'running'", "next fence only"),
        ("UPDATE trials SET state = 'running', fence = fence + 2", "next fence only"),
        ("UPDATE trials SET fence = fence - 1", "may not go down"),
        ("UPDATE trials SET state = 'finished'", "trials_outcome_at_end_check"),
    ],
)
def test_database_refuses_illegal_moves(world: QueueWorld, statement, message):
    world.trials(world.tenant())
    with pytest.raises(IntegrityError, match=message):
        world.execute(statement)


def test_nothing_leaves_a_terminal_state(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    world.seat.start(claimed)
    world.seat.finish(claimed)
    for statement in (
        "UPDATE trials SET state = 'queued', outcome = NULL",
        "UPDATE trials SET outcome = 'failed'",
        "UPDATE attempts SET state = 'running'",
    ):
        with pytest.raises(IntegrityError):
            world.execute(statement)


def test_every_move_leaves_an_event_with_its_actor(world: QueueWorld, bell):
    claimed = world.seat.claim(bell)
    world.seat.start(claimed)
    world.seat.finish(claimed)
    rows = world.execute("SELECT subject, fence, from_state, to_state, actor FROM trial_events ORDER BY n")
    moves = [(row["subject"], row["fence"], row["from_state"], row["to_state"]) for row in rows]
    # The order of the two tables within one statement is the database's business.
    assert sorted(moves) == sorted(
        [
            ("trial", 0, "", "queued"),
            ("trial", 1, "queued", "running"),
            ("attempt", 1, "", "dispatched"),
            ("attempt", 1, "dispatched", "starting"),
            ("attempt", 1, "starting", "running"),
            ("attempt", 1, "running", "finished"),
            ("trial", 1, "running", "finished"),
        ]
    )
    assert {row["actor"] for row in rows} == {"test"}
