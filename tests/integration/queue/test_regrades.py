"""Later grades, from stored bytes."""

import json
import threading
from dataclasses import asdict

import pytest

import services.regrades
import services.verdicts
from core.blobstore import BlobStore
from repositories.log_chunks import Chunk, LogChunkRepository
from repositories.regrades import RegradeWorkRepository
from services.jobspec import ExitCodeVerdict, LogVerdict, Need, RewardVerdict, Step, StepRole
from services.outcomes import StepResult
from services.problems import InvalidFieldsError, Problem
from services.regrades import NewRegrade, Regrader, RegradeService
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld

LOG = b"test_a (m.T.test_a) ... ok\ntest_b (m.T.test_b) ... FAIL\n\nRan 2 tests in 0.1s\n\nFAILED (failures=1)\n"


@pytest.fixture
def batches(world: QueueWorld) -> BatchWorld:
    return BatchWorld.make(world)


@pytest.fixture
def blobs(tmp_path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def judged(key: str, **changes):
    """A job whose one step printed LOG and ended with 1."""
    steps = (Step(name="run", role=StepRole.VERIFY, run="x", merge_streams=True),)
    return job(key, steps=steps, **{"verdict": ExitCodeVerdict(), **changes})


def finish(batches: BatchWorld, claimed, *, outcome="failed", exit_code=1, failure=None) -> None:
    result = StepResult("run", StepRole.VERIFY, exit_code=exit_code)
    with batches.world.engine.begin() as connection:
        chunk = Chunk(
            claimed.attempt_id, claimed.trial_id, claimed.fence, 0, "run", "stdout", claimed_at(batches), LOG
        )
        LogChunkRepository(connection).append([chunk])
    assert batches.seat.finish(
        claimed, outcome=outcome, reason="x", steps=json.dumps([asdict(result)]), failure=failure,
        next_seq=1, log_bytes=len(LOG),
    )  # fmt: skip


def claimed_at(batches: BatchWorld):
    return batches.world.execute("SELECT now() AS now")[0]["now"]


def ask(batches: BatchWorld, kind: str, key, verdict=None, check=lambda spec: []):
    with batches.world.engine.begin() as connection:
        target = batches_target(batches, connection, kind, key)
        return RegradeService(connection, batches.tenant).request(target, NewRegrade(verdict, check))


def batches_target(batches: BatchWorld, connection, kind: str, key):
    from services.batch_verbs import BatchVerbService  # noqa: PLC0415

    return getattr(BatchVerbService(connection, batches.tenant), kind)(key)


def regrade_all(batches: BatchWorld, blobs: BlobStore) -> int:
    regrader, count = Regrader(batches.world.engine, blobs), 0
    while regrader.regrade_one():
        count += 1
    return count


PASSING = LogVerdict("unittest", fail_to_pass=("m.T.test_a",))


def test_a_new_verdict_changes_outcome_counts_and_history_but_not_the_attempt(batches, blobs):
    batch = batches.submit(judged("a"), judged("b"))
    for one in batches.start():
        finish(batches, one)
    batches.progress()
    assert batches.counts(batch) == {"failed": 2}

    key = batches.job_id(batch, "a")
    answer = ask(batches, "job", key, ExitCodeVerdict(pass_codes=(1,)))
    assert (answer.regrading, answer.not_gradable) == (1, 0)
    assert regrade_all(batches, blobs) == 1

    (row,) = batches.trials(batch, "a")
    assert (row["outcome"], row["grade_no"], row["failure"], row["state"]) == ("passed", 1, None, "finished")
    assert row["rewards"] == {"reward": 1.0}
    assert batches.counts(batch) == {"failed": 1, "passed": 1}
    attempt = batches.world.attempt(row["id"], 1)
    assert attempt["outcome"] == "failed"
    grades = batches.world.execute("SELECT * FROM grades")
    assert [(g["number"], g["old_outcome"], g["outcome"]) for g in grades] == [(1, "failed", "passed")]
    batches.progress()
    kinds = [(kind, outcome) for _, kind, outcome in batches.events(batch)]
    assert ("trial.regraded", "passed") in kinds
    ends = "SELECT count(*) AS n FROM trial_events WHERE to_state = 'finished' AND subject = 'trial'"
    assert batches.world.execute(ends)[0]["n"] == 2
    batches.check_recount()


def test_the_log_is_read_from_the_store(batches, blobs):
    batch = batches.submit(judged("a"))
    finish(batches, batches.start()[0])
    batches.progress()
    ask(batches, "batch", batch, PASSING)
    regrade_all(batches, blobs)
    assert batches.counts(batch) == {"passed": 1}
    ask(batches, "batch", batch, LogVerdict("unittest"))
    regrade_all(batches, blobs)
    (row,) = batches.trials(batch)
    assert (row["outcome"], row["grade_no"], row["failure"]["code"]) == ("failed", 2, "tests_failed")
    batches.progress()
    batches.check_recount()


def test_files_are_read_from_the_store_and_what_was_not_kept_is_missing(batches, blobs):
    batch = batches.submit(judged("kept"), judged("not-kept"))
    for one in batches.start():
        finish(batches, one, exit_code=0)
        if one.job_key == "kept":
            stored = blobs.put([b"0.75"], max_bytes=100)
            batches.world.execute(
                "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
                " VALUES (%(t)s, 1, '/r', %(me)s, %(d)s, 4)",
                t=one.trial_id, me=batches.tenant, d=stored.digest,
            )  # fmt: skip
    batches.progress()
    ask(batches, "batch", batch, RewardVerdict("/r", pass_at=0.5))
    regrade_all(batches, blobs)
    assert batches.states(batch, "kept") == {"passed": 1}
    assert batches.trials(batch, "not-kept")[0]["failure"]["code"] == "reward_missing"


def test_a_grade_before_the_end_was_counted_is_counted_once(batches, blobs):
    batch = batches.submit(judged("a"))
    finish(batches, batches.start()[0])
    ask(batches, "batch", batch, PASSING)
    regrade_all(batches, blobs)
    assert batches.counts(batch) == {"passed": 1}
    batches.progress()
    assert batches.counts(batch) == {"passed": 1}
    batches.check_recount()


def test_what_left_nothing_to_judge_is_not_gradable(batches, blobs):
    infra = '{"class": "infra", "code": "unknown", "message": "m"}'
    batch = batches.submit(judged("broken"), judged("cancelled"), judged("waits", runtime="docker"))
    for one in batches.start():
        if one.job_key == "broken":
            finish(batches, one, outcome="error", failure=infra)
        else:
            finish(batches, one, outcome="cancelled")
    answer = ask(batches, "batch", batch)
    assert (answer.regrading, answer.not_gradable) == (0, 2)
    assert regrade_all(batches, blobs) == 0


def test_a_verdict_that_does_not_suit_a_job_is_refused_by_name(batches):
    batch = batches.submit(judged("a"))
    finish(batches, batches.start()[0])
    with pytest.raises(InvalidFieldsError, match="job 'a': no step") as raised:
        ask(batches, "batch", batch, PASSING, lambda spec: [Problem("verdict.step", "no step has this name")])
    assert raised.value.field == "verdict.step"
    assert batches.world.execute("SELECT 1 FROM grades") == []


def test_a_retry_before_the_grade_wins(batches, blobs):
    batch = batches.submit(judged("a"))
    finish(batches, batches.start()[0])
    batches.progress()
    ask(batches, "batch", batch, PASSING)
    batches.verb("retry", "batch", batch, ["failed"])
    regrade_all(batches, blobs)
    assert batches.counts(batch) == {"queued": 1}
    (grade,) = batches.world.execute("SELECT number, failure FROM grades")
    assert grade["number"] is None
    batches.progress()
    batches.check_recount()


def test_a_trial_that_cannot_be_graded_keeps_its_outcome_and_the_next_is_graded(batches, blobs):
    batch = batches.submit(judged("a"), judged("b"))
    for one in batches.start():
        finish(batches, one)
    batches.world.execute(
        """UPDATE attempts SET steps = '[{"name": "run"}]' WHERE trial_id = %(t)s""",
        t=batches.trials(batch, "a")[0]["id"],
    )
    ask(batches, "batch", batch, PASSING)
    assert regrade_all(batches, blobs) == 2
    assert batches.states(batch) == {"failed": 1, "passed": 1}
    failures = batches.world.execute("SELECT failure ->> 'code' AS code FROM grades ORDER BY 1")
    assert [row["code"] for row in failures] == ["regrade_failed", None]


def test_several_workers_grade_each_trial_once(batches, blobs):
    batch = batches.submit(*(judged(f"j{n}") for n in range(12)))
    for one in batches.start():
        finish(batches, one)
    batches.progress()
    ask(batches, "batch", batch, PASSING)
    threads = [threading.Thread(target=regrade_all, args=(batches, blobs)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches.counts(batch) == {"passed": 12}
    assert {row["grade_no"] for row in batches.trials(batch)} == {1}


def test_a_grade_that_meets_a_need_lets_the_job_go(batches, blobs):
    """The need was not met when a ended, but could be yet: the other one was still running."""
    batch = batches.submit(judged("a"), judged("slow"), job("b", needs=(Need("a"), Need("slow"))))
    claimed = {one.job_key: one for one in batches.start()}
    finish(batches, claimed["slow"], outcome="passed", exit_code=0)
    finish(batches, claimed["a"])
    ask(batches, "job", batches.job_id(batch, "a"), PASSING)
    regrade_all(batches, blobs)
    batches.progress()
    assert batches.run() == ["b"]


def test_an_outcome_cannot_change_without_the_next_grade(batches):
    import sqlalchemy.exc  # noqa: PLC0415

    batch = batches.submit(judged("a"))
    finish(batches, batches.start()[0])
    for change in ("outcome = 'passed'", "outcome = 'passed', grade_no = 2"):
        with pytest.raises(sqlalchemy.exc.IntegrityError, match="next grade"):
            batches.world.execute(f"UPDATE trials SET {change} WHERE batch_id = %(b)s", b=batch)


def wish(batches: BatchWorld) -> dict:
    return batches.world.execute("SELECT * FROM grades")[0]


@pytest.fixture
def asked(batches: BatchWorld):
    """A finished trial, and the wish to grade it again."""
    batches.submit(judged("a"))
    (one,) = batches.start()
    finish(batches, one)
    ask(batches, "trial", one.trial_id, PASSING)
    return one


def test_what_is_being_graded_is_left_to_its_worker_until_its_time_is_over(batches, blobs, asked):
    with batches.world.engine.begin() as connection:
        assert RegradeWorkRepository(connection).claim(hold_seconds=60) is not None
    assert regrade_all(batches, blobs) == 0
    batches.world.execute("UPDATE grades SET claimed_until = now() - interval '1 second'")
    assert regrade_all(batches, blobs) == 1
    assert (wish(batches)["outcome"], wish(batches)["tries"]) == ("passed", 2)


def test_no_transaction_is_open_while_a_trial_is_graded(batches, blobs, asked, monkeypatch):
    seen = []

    def look(*arguments):
        seen.append(
            batches.world.execute(
                "SELECT count(*) AS n FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'"
                " AND datname = current_database()"
            )[0]["n"]
        )
        return services.verdicts.grade(*arguments)

    monkeypatch.setattr(services.regrades, "grade", look)
    assert regrade_all(batches, blobs) == 1
    assert seen == [0]


def test_a_grade_that_comes_too_late_is_dropped(batches, blobs, asked, monkeypatch):
    def slow(*arguments):
        batches.world.execute("UPDATE grades SET claimed_until = now() - interval '1 second'")
        with batches.world.engine.begin() as connection:
            assert RegradeWorkRepository(connection).claim(hold_seconds=60) is not None
        return services.verdicts.grade(*arguments)

    monkeypatch.setattr(services.regrades, "grade", slow)
    assert Regrader(batches.world.engine, blobs).regrade_one()
    assert wish(batches)["graded_at"] is None
    assert batches.world.trial(asked.trial_id)["outcome"] == "failed"


def test_a_wish_that_nobody_settles_in_time_ends_after_a_few_tries(batches, blobs, asked):
    for _ in range(5):
        with batches.world.engine.begin() as connection:
            assert RegradeWorkRepository(connection).claim(hold_seconds=-1) is not None
    assert regrade_all(batches, blobs) == 1
    row = wish(batches)
    assert (row["outcome"], row["number"], row["failure"]["code"]) == (None, None, "regrade_timeout")
    assert row["graded_at"] is not None
    assert batches.world.trial(asked.trial_id)["outcome"] == "failed"
    assert regrade_all(batches, blobs) == 0
