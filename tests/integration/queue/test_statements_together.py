"""Attempts whose writes share a statement: each is fenced by itself, and none suffers for another."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from core.database import create_database_engine
from core.ids import new_id
from repositories.attempts import AttemptEnd, AttemptRepository, AttemptStart, ClaimedAttempt
from services.attempt_writes import AttemptStatements
from tests.support.queue import QueueWorld, Seat
from tests.support.statements import after_statements

END = AttemptEnd("passed", "passed", "finished", None, "[]", None, "{}", None, 0, 0, 0)
START = AttemptStart(phase="run", total_seconds=60, run_seconds=30, progress='{"step": 0}')
WAIT = 20


@pytest.fixture
def seat(world: QueueWorld) -> Seat:
    return world.session()


@pytest.fixture
def claimed(world: QueueWorld, seat: Seat) -> list[ClaimedAttempt]:
    """Three claimed attempts, in the order of their bells."""
    world.trials(world.tenant(), 3)
    world.dispatcher.tick()
    keys = [(bell.trial_id, bell.fence) for bell in world.bells.rung]
    with world.engine.begin() as connection:
        attempts = AttemptRepository(connection).claim_all(
            keys, session_id=seat.session_id, node_id=seat.node_id
        )
    assert {(attempt.trial_id, attempt.fence) for attempt in attempts} == set(keys)
    return sorted(attempts, key=lambda attempt: keys.index((attempt.trial_id, attempt.fence)))


@pytest.fixture
def impatient(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, actor="test", pool_size=3, lock_timeout_seconds=0.1)
    yield engine
    engine.dispose()


@pytest.fixture
def statements(world: QueueWorld, seat: Seat, impatient: Engine) -> AttemptStatements:
    return AttemptStatements(world.engine, impatient, node_id=seat.node_id)


def states(world: QueueWorld, claimed: list[ClaimedAttempt]) -> list[str]:
    return [world.attempt(attempt.trial_id, attempt.fence)["state"] for attempt in claimed]


def key(attempt: ClaimedAttempt) -> tuple:
    return attempt.trial_id, attempt.fence


def test_a_claim_of_several_takes_each_that_is_dispatched_and_no_other(world: QueueWorld, seat: Seat):
    world.trials(world.tenant(), 3)
    world.dispatcher.tick()
    one, two, three = ((bell.trial_id, bell.fence) for bell in world.bells.rung)
    assert seat.claim(world.bells.rung[1]) is not None

    with world.engine.begin() as connection:
        wanted = [one, two, (three[0], three[1] + 1), (new_id(), 1)]
        taken = AttemptRepository(connection).claim_all(
            wanted, session_id=seat.session_id, node_id=seat.node_id
        )
    assert [key(attempt) for attempt in taken] == [one]
    names = world.execute("SELECT name FROM sandboxes ORDER BY name")
    assert len(names) == 2


def test_a_ghost_among_others_is_left_out_and_they_are_not(
    world: QueueWorld, seat: Seat, claimed: list[ClaimedAttempt]
):
    ghost = world.session()
    sessions = [seat.session_id, ghost.session_id, seat.session_id]
    with world.engine.begin() as connection:
        repository = AttemptRepository(connection)
        started = repository.mark_all_running(
            [(attempt, session, START) for attempt, session in zip(claimed, sessions, strict=True)]
        )
        assert started == {key(claimed[0]), key(claimed[2])}
        ended = repository.finish_all(
            [(attempt, session, END) for attempt, session in zip(claimed, sessions, strict=True)]
        )
    assert ended == {key(claimed[0]), key(claimed[2])}
    assert states(world, claimed) == ["finished", "starting", "finished"]
    assert [world.trial(attempt.trial_id)["state"] for attempt in claimed] == [
        "finished",
        "running",
        "finished",
    ]
    assert seat.finish(claimed[1])


@pytest.mark.breaks_invariants("retries_over_budget", reason="the numbers only have to differ")
def test_each_gets_its_own_values(world: QueueWorld, seat: Seat, claimed: list[ClaimedAttempt]):
    starts = [
        AttemptStart(phase="a", total_seconds=100, run_seconds=None, progress='{"step": 1}'),
        AttemptStart(phase="b", total_seconds=200, run_seconds=10, grace_seconds=5),
        AttemptStart(phase="c", total_seconds=300, run_seconds=900),
    ]
    failure = '{"class": "task", "code": "x"}'
    passed = AttemptEnd(
        "passed", "passed", "finished", None, '[{"n": 1}]', None, "{}", '{"score": 0.5}', 0, 0, 7
    )
    error = AttemptEnd("error", "x", "cut", failure, "[]", "{}", "{}", None, 0, 0, 0, 30, 1, 0, [1, 2])
    failed = AttemptEnd(
        "failed", "x", "cut", failure, "[]", "{}", "{}", None, 0, 0, 0, task_retry=1, rule_retries=[4]
    )
    ends = [passed, error, failed]
    session = seat.session_id
    with world.engine.begin() as connection:
        repository = AttemptRepository(connection)
        repository.mark_all_running([(a, session, s) for a, s in zip(claimed, starts, strict=True)])
    sql = (
        "SELECT phase, progress, round(extract(epoch FROM run_deadline - started_at))::int AS run,"
        " round(extract(epoch FROM overdue_at - run_deadline))::int AS slack FROM attempts WHERE trial_id = %(id)s"
    )
    rows = [world.execute(sql, id=attempt.trial_id)[0] for attempt in claimed]
    assert [row["phase"] for row in rows] == ["a", "b", "c"]
    assert [row["progress"] for row in rows] == [{"step": 1}, None, None]
    assert [row["run"] for row in rows] == [100, 10, 300]
    assert [row["slack"] for row in rows] == [60, 65, 60]
    with world.engine.begin() as connection:
        AttemptRepository(connection).finish_all(
            [(a, session, e) for a, e in zip(claimed, ends, strict=True)]
        )
    trials = [world.trial(attempt.trial_id) for attempt in claimed]
    assert [trial["state"] for trial in trials] == ["finished", "retry_wait", "finished"]
    assert [trial["outcome"] for trial in trials] == ["passed", None, "failed"]
    assert [trial["rewards"] for trial in trials] == [{"score": 0.5}, None, None]
    assert [trial["rule_retries"] for trial in trials] == [None, [1, 2], [4]]
    assert [(trial["infra_losses"], trial["task_retries"]) for trial in trials] == [(0, 0), (1, 0), (0, 1)]
    heads = world.execute(
        "SELECT next_seq, bytes, truncated_bytes, closed FROM log_heads ORDER BY truncated_bytes DESC"
    )
    assert heads[0] == {"next_seq": 0, "bytes": 0, "truncated_bytes": 7, "closed": True}
    assert len(heads) == 3


def test_a_row_that_somebody_holds_keeps_no_other_from_its_end(
    world: QueueWorld, seat: Seat, claimed: list[ClaimedAttempt], statements: AttemptStatements
):
    for attempt in claimed:
        assert statements.mark_running(attempt, seat.session_id, START)
    with ThreadPoolExecutor(3) as pool, world.engine.connect() as holder:
        holder.exec_driver_sql(
            "SELECT 1 FROM trials WHERE id = %(id)s FOR UPDATE", {"id": claimed[0].trial_id}
        )
        # The first is alone with its statement, the others come with it or behind it.
        ends = [pool.submit(statements.finish, attempt, seat.session_id, END) for attempt in claimed]
        assert [end.result(WAIT) for end in ends[1:]] == [True, True]
        assert states(world, claimed)[1:] == ["finished", "finished"]
        holder.rollback()
        assert ends[0].result(WAIT)
    assert states(world, claimed) == ["finished"] * 3


def test_a_value_that_the_database_refuses_spoils_no_other(
    world: QueueWorld, seat: Seat, claimed: list[ClaimedAttempt], statements: AttemptStatements
):
    """All three go in one statement: the first is held back until the others have come."""
    gate = threading.Event()
    run = statements._ends._action
    statements._ends._action = lambda items: (gate.wait(WAIT), run(items))[1]
    bad = AttemptEnd("passed", "passed", "finished", None, "no json", None, "{}", None, 0, 0, 0)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(statements.finish, claimed[0], seat.session_id, END)
        others = [pool.submit(statements.finish, claimed[1], seat.session_id, bad)]
        others.append(pool.submit(statements.finish, claimed[2], seat.session_id, END))
        while len(statements._ends._waiting) < 2:
            threading.Event().wait(0.001)
        gate.set()
        assert first.result(WAIT)
        with pytest.raises(Exception, match="invalid input syntax for type json"):
            others[0].result(WAIT)
        assert others[1].result(WAIT)
    assert states(world, claimed) == ["finished", "starting", "finished"]


@pytest.mark.parametrize("lost", ["claim", "start", "end"])
def test_a_write_whose_reply_was_lost_counts_as_done(
    world: QueueWorld, seat: Seat, impatient: Engine, statements: AttemptStatements, lost: str
):
    """The statement is committed, and its connection fails then; what the first try has done is found by the second."""
    world.trials(world.tenant(), 1)
    world.dispatcher.tick()
    (bell,) = world.bells.rung
    broken: list[str] = []

    def break_off(_, statement, parameters):
        mark = {"claim": "WITH wanted AS", "start": "WITH starts AS", "end": "WITH ends AS"}[lost]
        if mark in statement and not broken:
            broken.append(statement)
            raise OperationalError(
                statement, parameters, Exception("the reply is lost"), connection_invalidated=True
            )

    def patiently(call, *arguments) -> bool:
        try:
            return call(*arguments)
        except OperationalError:
            return call(*arguments)

    with after_statements(break_off):
        claimed = statements.claim(bell.trial_id, bell.fence, seat.session_id)
        assert claimed is not None
        assert patiently(statements.mark_running, claimed, seat.session_id, START)
        assert patiently(statements.finish, claimed, seat.session_id, END)
    assert broken
    assert states(world, [claimed]) == ["finished"]


def test_a_ghost_is_told_so_however_often_it_asks(
    world: QueueWorld, seat: Seat, claimed: list[ClaimedAttempt], statements: AttemptStatements
):
    world.execute(
        "UPDATE attempts SET state = 'lost', finished_at = now() WHERE trial_id = %(id)s",
        id=claimed[0].trial_id,
    )
    world.execute("UPDATE trials SET state = 'queued' WHERE id = %(id)s", id=claimed[0].trial_id)
    assert not statements.mark_running(claimed[0], seat.session_id, START)
    assert not statements.finish(claimed[0], seat.session_id, END)
    other = world.session()
    assert not statements.mark_running(claimed[1], other.session_id, START)
    assert not statements.finish(claimed[1], other.session_id, END)
    assert statements.claim(claimed[1].trial_id, claimed[1].fence, other.session_id) is None
