"""Each of an attempt's times, as the worker keeps it."""

import threading
import time

import pytest

from core.errors import RegistryRateLimitedError
from runtimes.base import SandboxStats
from runtimes.fake import FakeRuntime
from services.attempt_control import AttemptControl, StopReason
from services.jobspec import Input, RetryBudget, RetryRule, Step, StepRole, Timeouts
from tests.support.queue import QueueWorld, make_spec
from tests.support.worker import running_bench


@pytest.fixture
def bench(world: QueueWorld, tmp_path):
    with running_bench(world, FakeRuntime(), tmp_path) as bench:
        yield bench


def step(run: str, name: str = "run", **changes) -> Step:
    return Step(name=name, run=run, **changes)


CHECK = step("true", "check", role=StepRole.VERIFY)


def test_run_time_cuts_the_step_runs_no_other_and_is_named(bench):
    spec = make_spec(steps=(step("sleep 30"), CHECK), timeouts=Timeouts(run=0.2))
    row = bench.run(spec)
    assert (row["outcome"], row["failure"]["class"], row["failure"]["code"]) == (
        "failed",
        "task",
        "run_timeout",
    )
    assert [s["name"] for s in bench.world.attempt(row["id"], 1)["steps"]] == ["run"]


def test_total_is_named_when_both_are_over(bench):
    spec = make_spec(steps=(step("sleep 30"),), timeouts=Timeouts(run=50.0, total=0.2))
    assert bench.run(spec)["failure"]["code"] == "total_timeout"


def test_each_attempt_has_its_own_run_time(bench):
    spec = make_spec(
        steps=(step("sleep 30"),),
        timeouts=Timeouts(run=0.2),
        retry=RetryBudget(task_max=1, initial_seconds=0.0, rules=(RetryRule(codes=("run_timeout",)),)),
    )
    row = bench.run(spec)
    assert (row["state"], row["task_retries"], row["rule_retries"]) == ("retry_wait", 1, [1])
    bench.world.execute("UPDATE trials SET state = 'queued'")
    bench.world.dispatcher.tick()
    row = bench.answer(bench.world.bells.rung[-1])
    assert (row["state"], row["failure"]["code"]) == ("finished", "run_timeout")
    assert (
        bench.world.attempt(row["id"], 2)["run_deadline"] > bench.world.attempt(row["id"], 1)["run_deadline"]
    )


def test_idle_step_is_cut_and_what_it_left_is_still_judged(bench):
    spec = make_spec(steps=(step("sleep 30"), CHECK), timeouts=Timeouts(idle=0.2))
    row = bench.run(spec)
    attempt = bench.world.attempt(row["id"], 1)
    assert row["outcome"] == "passed"
    assert [(s["name"], s["timed_out"], s["is_idle"]) for s in attempt["steps"]] == [
        ("run", True, True),
        ("check", False, False),
    ]


def test_idle_is_named_as_the_failure(bench):
    row = bench.run(make_spec(steps=(step("sleep 30"),), timeouts=Timeouts(idle=0.2)))
    assert (row["outcome"], row["failure"]["code"], row["failure"]["timed_out"]) == (
        "failed",
        "idle_timeout",
        True,
    )


def test_idle_verify_step_is_no_verdict(bench):
    steps = (step("sleep 30", "check", role=StepRole.VERIFY),)
    row = bench.run(make_spec(steps=steps, timeouts=Timeouts(idle=0.2)))
    assert (row["outcome"], row["failure"]["code"]) == ("error", "idle_timeout")


def test_step_that_computes_in_silence_is_not_idle(world: QueueWorld, tmp_path):
    class Busy(FakeRuntime):
        seconds = 0.0

        def stats(self, handle):
            self.seconds += 1.0
            return SandboxStats(cpu_seconds=self.seconds, oom_kills=0)

    with running_bench(world, Busy(), tmp_path) as bench:
        assert (
            bench.run(make_spec(steps=(step("sleep 0.6"),), timeouts=Timeouts(idle=0.2)))["outcome"]
            == "passed"
        )


def test_start_time_counts_from_the_dispatch(world: QueueWorld, tmp_path):
    class Noting(FakeRuntime):
        given: float | None = None

        def create(self, spec, *, timeout_seconds):
            self.given = timeout_seconds
            return super().create(spec, timeout_seconds=timeout_seconds)

    runtime = Noting()
    with running_bench(world, runtime, tmp_path) as bench:
        bell = bench.dispatch(make_spec(timeouts=Timeouts(start=100.0)))
        world.execute("UPDATE attempts SET created_at = created_at - interval '70 s'")
        bench.answer(bell)
    assert runtime.given is not None
    assert 25.0 < runtime.given <= 30.0


def test_inputs_that_do_not_arrive_in_time_are_a_start_timeout(world: QueueWorld, tmp_path, monkeypatch):
    uploading = threading.Event()
    with running_bench(world, FakeRuntime(), tmp_path) as bench:
        client = type(bench.runtime.executions(None))

        def upload(self, files):
            uploading.set()
            while True:
                self._runtime.live(self._handle)  # raises once the sandbox is gone
                threading.Event().wait(0.01)

        monkeypatch.setattr(client, "upload", upload)
        bell = bench.dispatch(make_spec(inputs=(Input("/a", text="x"),), retry=RetryBudget(infra_max=0)))
        control = AttemptControl()
        thread = threading.Thread(target=bench.answer, args=(bell, control))
        thread.start()
        assert uploading.wait(10)
        try:
            # The time of the start, the grace and a margin.
            assert 100 < control._deadlines["attempt"] - time.monotonic() <= 140
            control._deadlines["attempt"] = 0.0
            control.check_deadline()
            thread.join(10)
        finally:
            control.request(StopReason.DISOWNED)
            thread.join(10)
        row = world.trial(bell.trial_id)
    assert (row["outcome"], row["failure"]["class"], row["failure"]["code"]) == (
        "error",
        "infra",
        "start_timeout",
    )


def test_what_a_registry_asks_for_is_waited(world: QueueWorld, tmp_path):
    class Limited(FakeRuntime):
        def create(self, spec, *, timeout_seconds):
            error = RegistryRateLimitedError("asked too often")
            error.retry_after_seconds = 120.0
            raise error

    with running_bench(world, Limited(), tmp_path) as bench:
        row = bench.run(make_spec())
    assert row["state"] == "retry_wait"
    (wait,) = world.execute("SELECT extract(epoch FROM run_at - clock_timestamp())::float8 AS s FROM trials")
    assert 118.0 < wait["s"] <= 121.0
    assert world.attempt(row["id"], 1)["failure"]["retry_after_seconds"] == 120.0
