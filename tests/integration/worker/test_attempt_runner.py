import threading
from dataclasses import replace

import pytest

from core.errors import DaemonError, InvalidRequestError, SpecInvalidError
from runtimes.base import SandboxStats
from runtimes.fake import FakeOutcome, FakeRuntime
from services import attempt_runner
from services.attempt_control import AttemptControl, StopReason
from services.jobspec import (
    ArtifactRule,
    ExitCodeVerdict,
    Input,
    JunitVerdict,
    LogVerdict,
    PatchStep,
    RetryBudget,
    RewardVerdict,
    Step,
    StepRole,
    Timeouts,
)
from tests.support.queue import QueueWorld, make_spec
from tests.support.worker import running_bench

NO_RETRY = RetryBudget(infra_max=0)


@pytest.fixture
def bench(world: QueueWorld, tmp_path):
    with running_bench(world, FakeRuntime(), tmp_path) as bench:
        yield bench


def step(run: str, name: str = "run", **changes) -> Step:
    return Step(name=name, run=run, **changes)


def test_exit_zero_passes_and_is_written_whole(bench):
    row = bench.run(make_spec())
    assert (row["state"], row["outcome"], row["failure"]) == ("finished", "passed", None)
    attempt = bench.world.attempt(row["id"], 1)
    assert (attempt["state"], attempt["outcome"]) == ("finished", "passed")
    assert [(s["name"], s["exit_code"]) for s in attempt["steps"]] == [("run", 0)]
    assert attempt["usage"]["wall_seconds"] >= 0
    assert bench.world.execute("SELECT state, end_reason FROM sandboxes") == [
        {"state": "removed", "end_reason": "finished"}
    ]
    assert bench.world.execute("SELECT closed, next_seq FROM log_heads") == [{"closed": True, "next_seq": 0}]
    assert bench.runtime.list() == []


def test_nonzero_exit_fails_without_retry(bench):
    row = bench.run(make_spec(steps=(step("exit 3"),)))
    assert (row["state"], row["outcome"], row["failure"]["class"]) == ("finished", "failed", "task")
    assert row["failure"]["exit_code"] == 3


def test_task_retries_are_taken_from_their_own_budget(bench):
    row = bench.run(make_spec(steps=(step("exit 1"),), retry=RetryBudget(task_max=1)))
    assert (row["state"], row["task_retries"], row["infra_losses"]) == ("retry_wait", 1, 0)


@pytest.mark.parametrize(
    ("image", "failure_class", "code", "state"),
    [
        ("missing", "spec", "image_not_found", "finished"),
        ("broken", "infra", "daemon_error", "retry_wait"),
        ("slow-start", "infra", "create_timeout", "retry_wait"),
    ],
)
def test_failed_start_is_blamed_and_retried_by_class(bench, image, failure_class, code, state):
    row = bench.run(make_spec(image=image))
    attempt = bench.world.attempt(row["id"], 1)
    assert row["state"] == state
    assert (attempt["failure"]["class"], attempt["failure"]["code"]) == (failure_class, code)
    assert row["outcome"] == ("error" if state == "finished" else None)


def test_runtime_this_node_does_not_offer_is_infra(bench):
    bell = bench.dispatch(make_spec(retry=NO_RETRY))
    bench.world.execute("UPDATE trials SET runtime = 'docker'")
    row = bench.answer(bell)
    assert (row["outcome"], row["failure"]["code"]) == ("error", "runtime_unavailable")


def test_output_is_stored_in_order_and_published_after(bench):
    row = bench.run(make_spec(steps=(step("echo one", "a"), step("echo two", "b"))))
    assert bench.log_of(row["id"]) == [("a", "stdout", b"one\n"), ("b", "stdout", b"two\n")]
    assert [chunk.data for chunk in bench.published] == [b"one\n", b"two\n"]


def test_seed_and_index_reach_the_commands(world, tmp_path):
    seen = {}

    def script(_image, command):
        seen.update(command.env)

    with running_bench(world, FakeRuntime(script), tmp_path) as bench:
        bench.run(make_spec(env={"A": "1"}, steps=(step("true", env={"B": "2"}),)), seed=42)
    assert seen == {"A": "1", "B": "2", "TRIAL_INDEX": "0", "TRIAL_SEED": "42"}


def test_late_bound_input_does_not_exist_before_its_step(bench):
    spec = make_spec(
        inputs=(Input("/early", text="e"), Input("/late", text="l", before="verify")),
        steps=(
            step("cat /early", "one"),
            step("cat /late", "two"),
            step("cat /late", "verify", role=StepRole.VERIFY),
        ),
    )
    row = bench.run(spec)
    log = bench.log_of(row["id"])
    assert ("one", "stdout", b"e") in log
    assert [data for name, stream, data in log if name == "two" and stream == "stdout"] == []
    assert ("verify", "stdout", b"l") in log


def test_blob_inputs_and_reward_verdict(bench):
    stored = bench.blobs.put([b'{"reward": 1.0, "style": 0.5}'], max_bytes=100)
    spec = make_spec(inputs=(Input("/r.json", blob=stored.digest),), verdict=RewardVerdict("/r.json"))
    row = bench.run(spec)
    assert (row["outcome"], row["rewards"]) == ("passed", {"reward": 1.0, "style": 0.5})
    (artifact,) = bench.world.execute("SELECT path, digest FROM artifacts")
    assert artifact == {"path": "/r.json", "digest": stored.digest}


def test_missing_blob_is_a_spec_failure(bench):
    row = bench.run(make_spec(inputs=(Input("/x", blob="sha256:" + "0" * 64),)))
    assert (row["outcome"], row["failure"]["class"]) == ("error", "spec")


def test_junit_verdict_reads_the_collected_file(bench):
    cases = '<testcase classname="t" name="a"/><testcase classname="t" name="b"><failure/></testcase>'
    xml = f"<testsuite>{cases}</testsuite>"
    spec = make_spec(inputs=(Input("/j.xml", text=xml),), verdict=JunitVerdict("/j.xml"))
    assert bench.run(spec)["outcome"] == "failed"


LOG = """test_a (t.T.test_a) ... ok
test_b (t.T.test_b) ... FAIL

----------------------------------------------------------------------
Ran 2 tests in 0.001s

FAILED (failures=1)
"""


@pytest.mark.parametrize(("required", "outcome"), [("t.T.test_a", "passed"), ("t.T.test_b", "failed")])
def test_log_verdict_is_read_from_the_stored_output(bench, required, outcome):
    spec = make_spec(
        inputs=(Input("/log", text=LOG),),
        steps=(step("cat /log", "verify", role=StepRole.VERIFY),),
        verdict=LogVerdict("unittest", pass_to_pass=(f"test_{required[-1]} ({required})",)),
    )
    row = bench.run(spec)
    names = list(bench.world.attempt(row["id"], 1)["grade"]["tests"])
    spec = make_spec(
        inputs=spec.inputs,
        steps=spec.steps,
        verdict=LogVerdict("unittest", pass_to_pass=(names[0] if outcome == "passed" else names[1],)),
    )
    assert bench.run(spec)["outcome"] == outcome


PATCH = (
    "--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-old\n+new\n--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
)


def patch_job(patch: str, **changes):
    return make_spec(
        workdir="/w",
        inputs=(
            Input("/p.diff", text=patch),
            Input("/w/f.txt", text="old\n"),
            Input("/w/gone.txt", text="x\n"),
        ),
        steps=(
            Step(name="apply", role=StepRole.SETUP, patch=PatchStep("/p.diff")),
            step("cat /w/f.txt", "show"),
            step("cat /w/gone.txt", "verify", role=StepRole.VERIFY),
        ),
        verdict=ExitCodeVerdict(step="show"),
        **changes,
    )


def test_patch_changes_and_removes_files(bench):
    row = bench.run(patch_job(PATCH))
    log = bench.log_of(row["id"])
    assert ("show", "stdout", b"new\n") in log
    assert not [data for name, stream, data in log if name == "verify" and stream == "stdout"]


def test_rejected_patch_fails_and_stops(bench):
    row = bench.run(patch_job(PATCH.replace("-old", "-other")))
    assert (row["outcome"], row["failure"]["code"]) == ("failed", "patch_rejected")
    assert [s["name"] for s in bench.world.attempt(row["id"], 1)["steps"]] == ["apply"]
    assert bench.log_of(row["id"])[0][1] == "stderr"


def test_missing_patch_file_is_a_spec_failure(bench):
    spec = make_spec(steps=(Step(name="apply", patch=PatchStep("/nowhere.diff")),))
    row = bench.run(spec)
    assert (row["outcome"], row["failure"]["class"]) == ("error", "spec")


def test_artifacts_follow_their_rules(bench):
    spec = make_spec(
        inputs=(
            Input("/logs/a.txt", text="a"),
            Input("/logs/deep/b.txt", text="bb"),
            Input("/c.log", text="ccc"),
        ),
        steps=(step("exit 1"),),
        artifacts=(
            ArtifactRule("/logs/**"),
            ArtifactRule("/c.log", when="failed"),
            ArtifactRule("/*.log", when="passed"),
        ),
    )
    bench.run(spec)
    rows = bench.world.execute("SELECT path, size_bytes FROM artifacts ORDER BY path")
    assert [(row["path"], row["size_bytes"]) for row in rows] == [
        ("/c.log", 3),
        ("/logs/a.txt", 1),
        ("/logs/deep/b.txt", 2),
    ]


def test_artifact_beyond_its_cap_is_left_out_and_noted(bench):
    spec = make_spec(inputs=(Input("/big", text="x" * 100),), artifacts=(ArtifactRule("/big", max_bytes=99),))
    row = bench.run(spec)
    assert row["outcome"] == "passed"
    assert bench.world.execute("SELECT count(*) AS n FROM artifacts") == [{"n": 0}]
    assert b"/big" in bench.log_of(row["id"])[0][2]


def test_step_timeout_is_a_task_failure(bench):
    row = bench.run(make_spec(steps=(step("sleep 30", timeout_seconds=0.1),)))
    assert (row["outcome"], row["failure"]["code"], row["failure"]["timed_out"]) == (
        "failed",
        "step_timeout",
        True,
    )


def test_total_timeout_cuts_the_step_and_runs_no_other(bench):
    spec = make_spec(steps=(step("sleep 30", "a"), step("true", "b")), timeouts=Timeouts(total=0.2))
    row = bench.run(spec)
    assert [s["name"] for s in bench.world.attempt(row["id"], 1)["steps"]] == ["a"]
    assert row["outcome"] in {"failed", "error"}


def wait_running(bench, bell):
    pause = threading.Event()
    for _ in range(500):
        if bench.world.attempt(bell.trial_id, bell.fence)["state"] == "running":
            return
        pause.wait(0.01)
    pytest.fail("the attempt did not start to run")


@pytest.mark.parametrize("reason", [StopReason.CANCEL, StopReason.FORCE_CANCEL])
def test_cancel_reaches_the_command_and_is_written_by_the_owner(bench, reason):
    bell, control, thread = bench.start(make_spec(steps=(step("sleep 60"),)))
    wait_running(bench, bell)
    bench.world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = 'graceful'")
    control.request(reason)
    thread.join(10)
    assert not thread.is_alive()
    row = bench.world.trial(bell.trial_id)
    assert (row["state"], row["outcome"], row["failure"]["code"]) == ("finished", "cancelled", "cancelled")
    assert bench.runtime.list() == []


def test_trial_cancelled_before_its_claim_makes_no_sandbox(bench):
    bell = bench.dispatch(make_spec())
    bench.world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = 'graceful'")
    row = bench.answer(bell)
    assert row["outcome"] == "cancelled"


def test_shutdown_gives_the_trial_back_free_of_charge(bench):
    bell, control, thread = bench.start(make_spec(steps=(step("sleep 60"),)))
    wait_running(bench, bell)
    control.request(StopReason.SHUTDOWN)
    thread.join(10)
    row = bench.world.trial(bell.trial_id)
    assert (row["state"], row["infra_losses"], row["task_retries"]) == ("retry_wait", 0, 0)
    assert bench.world.attempt(bell.trial_id, 1)["failure"]["code"] == "worker_shutdown"


def test_disowned_attempt_kills_its_sandbox_and_writes_nothing(bench):
    bell, control, thread = bench.start(make_spec(steps=(step("sleep 60"),)))
    wait_running(bench, bell)
    control.request(StopReason.DISOWNED)
    thread.join(10)
    assert bench.runtime.list() == []
    assert bench.world.attempt(bell.trial_id, 1)["state"] == "running"


def test_sandbox_that_outlives_its_deadline_is_killed_from_outside(bench):
    bell, control, thread = bench.start(make_spec(steps=(step("sleep 60"),), retry=NO_RETRY))
    wait_running(bench, bell)
    control.set_deadline(-1.0)
    control.check_deadline()
    thread.join(10)
    row = bench.world.trial(bell.trial_id)
    assert (row["outcome"], row["failure"]["class"]) == ("error", "infra")


@pytest.mark.breaks_invariants("running_without_attempt", reason="takes the attempt away by hand")
def test_attempt_fenced_off_before_its_first_step_stops(bench):
    bell = bench.dispatch(make_spec())
    claimed = bench.seat.claim(bell)
    bench.world.execute("UPDATE attempts SET state = 'lost'")
    bench.runner.run(claimed, bench.seat.session_id, AttemptControl())
    assert bench.world.attempt(bell.trial_id, 1)["state"] == "lost"
    assert bench.runtime.list() == []


def test_unexpected_error_is_infra_and_retried(world, tmp_path):
    def script(_image, _command):
        message = "boom"
        raise RuntimeError(message)

    with running_bench(world, FakeRuntime(script), tmp_path) as bench:
        row = bench.run(make_spec())
    assert row["state"] == "retry_wait"
    assert world.attempt(row["id"], 1)["failure"]["code"] == "unknown"


def test_hostile_text_cannot_keep_an_attempt_from_being_recorded(world, tmp_path):
    class Hostile(FakeRuntime):
        def create(self, spec, *, timeout_seconds):
            message = "a\x00b\ud800c \\u0000"
            raise DaemonError(message)

    with running_bench(world, Hostile(), tmp_path) as bench:
        row = bench.run(make_spec(retry=NO_RETRY))
    assert (row["state"], row["failure"]["code"]) == ("finished", "daemon_error")


def test_end_that_cannot_be_written_is_recorded_without_its_details(bench, monkeypatch):
    original = attempt_runner.to_attempt_end
    calls = []

    def broken_once(*arguments, **options):
        end = original(*arguments, **options)
        calls.append(end)
        return replace(end, grade="{") if len(calls) == 1 else end

    monkeypatch.setattr(attempt_runner, "to_attempt_end", broken_once)
    row = bench.run(make_spec(retry=NO_RETRY))
    assert (row["state"], row["outcome"], row["failure"]["code"]) == ("finished", "error", "unknown")


def test_verdict_is_read_from_head_and_tail_of_a_long_log(bench):
    """The cap of the bench is 1 MiB: the end of the log is in the tail, which must be stored before it is read."""
    noise = ("x" * 99 + "\n") * 30_000
    spec = make_spec(
        inputs=(
            Input("/log", text=noise + LOG.replace("FAIL\n", "ok\n").replace("FAILED (failures=1)", "OK")),
        ),
        steps=(step("cat /log", "verify", role=StepRole.VERIFY),),
        verdict=LogVerdict("unittest", fail_to_pass=("t.T.test_b",)),
    )
    row = bench.run(spec)
    assert row["outcome"] == "passed", row["failure"]
    (head,) = bench.world.execute("SELECT truncated_bytes, bytes FROM log_heads")
    assert head["truncated_bytes"] > 1 << 20
    assert head["bytes"] <= 1 << 20


class Spoiled(FakeRuntime):
    """A sandbox in which the code under test has made some paths unusable."""

    def __init__(self, *, unreadable: str = "", unwritable: str = ""):
        super().__init__()
        self.unreadable, self.unwritable = unreadable, unwritable

    def executions(self, handle):
        client = super().executions(handle)
        download, upload = client.download, client.upload

        def bad_download(path, *, max_bytes):
            if path == self.unreadable:
                message = f"{path}: Not a regular file"
                raise InvalidRequestError(message)
            return download(path, max_bytes=max_bytes)

        def bad_upload(files):
            for file in files:
                if file.path == self.unwritable:
                    message = f"cannot write {file.path}: Is a directory"
                    raise SpecInvalidError(message)
            upload(files)

        client.download, client.upload = bad_download, bad_upload
        return client


def test_unreadable_artifact_is_noted_and_changes_no_outcome(world, tmp_path):
    spec = make_spec(
        inputs=(Input("/logs/x", text="x"), Input("/logs/y", text="y")),
        steps=(step("exit 1"),),
        artifacts=(ArtifactRule("/logs/**"),),
    )
    with running_bench(world, Spoiled(unreadable="/logs/x"), tmp_path) as bench:
        row = bench.run(spec)
        assert (row["outcome"], row["failure"]["code"]) == ("failed", "nonzero_exit")
        assert world.execute("SELECT path FROM artifacts") == [{"path": "/logs/y"}]
        assert b"/logs/x" in bench.log_of(row["id"])[0][2]


@pytest.mark.parametrize(
    ("first", "outcome", "code"),
    [(StepRole.RUN, "failed", "sandbox_spoiled"), (StepRole.SETUP, "error", "spec_invalid")],
)
def test_blocked_late_input_is_the_fault_of_the_code_that_ran(world, tmp_path, first, outcome, code):
    spec = make_spec(
        inputs=(Input("/tests/t", text="t", before="verify"),),
        steps=(step("true", "first", role=first), step("true", "verify", role=StepRole.VERIFY)),
    )
    with running_bench(world, Spoiled(unwritable="/tests/t"), tmp_path) as bench:
        row = bench.run(spec)
    assert (row["outcome"], row["failure"]["code"]) == (outcome, code)


def test_patch_target_that_is_no_regular_file_rejects_the_patch(world, tmp_path):
    with running_bench(world, Spoiled(unreadable="/w/f.txt"), tmp_path) as bench:
        row = bench.run(patch_job(PATCH))
    assert (row["outcome"], row["failure"]["code"]) == ("failed", "patch_rejected")


def test_missing_patch_file_has_its_own_code(bench):
    row = bench.run(make_spec(steps=(Step(name="apply", patch=PatchStep("/nowhere.diff")),)))
    assert (row["outcome"], row["failure"]["code"]) == ("error", "patch_path_missing")


def test_steps_of_the_code_under_test_leave_nothing_running(world, tmp_path):
    seen = {}

    def script(_image, command):
        seen[command.shell] = command.kill_leftovers

    spec = make_spec(
        steps=(
            step("s", "s", role=StepRole.SETUP),
            step("r", "r"),
            step("v", "v", role=StepRole.VERIFY),
        )
    )
    with running_bench(world, FakeRuntime(script), tmp_path) as bench:
        bench.run(spec)
    assert seen == {"s": False, "r": True, "v": True}


@pytest.mark.parametrize(("oom_kills", "outcome"), [(1, "failed"), (0, None)])
def test_execd_that_fell_with_the_memory_is_the_tasks_fault(world, tmp_path, oom_kills, outcome):
    class Dying(FakeRuntime):
        def stats(self, handle):
            return SandboxStats(oom_kills=oom_kills, memory_peak_bytes=0)

    def script(_image, _command):
        return FakeOutcome(dies=True)

    with running_bench(world, Dying(script), tmp_path) as bench:
        row = bench.run(make_spec())
    assert row["outcome"] == outcome
    code = world.attempt(row["id"], 1)["failure"]["code"]
    assert code == ("oom_limit" if oom_kills else "execd_unreachable")


def test_sandbox_that_will_not_go_does_not_cost_the_verdict(world, tmp_path, monkeypatch):
    monkeypatch.setattr("services.sandbox_handling.time.sleep", lambda _seconds: None)

    class Sticky(FakeRuntime):
        def remove(self, handle):
            message = "the engine does not answer"
            raise DaemonError(message)

    with running_bench(world, Sticky(), tmp_path) as bench:
        row = bench.run(make_spec())
    assert (row["state"], row["outcome"]) == ("finished", "passed")
    assert world.execute("SELECT state FROM sandboxes") == [{"state": "running"}]


def test_total_timeout_is_named_as_such(bench):
    row = bench.run(make_spec(steps=(step("sleep 30"),), timeouts=Timeouts(total=0.2)))
    assert (row["outcome"], row["failure"]["code"], row["failure"]["step"]) == (
        "failed",
        "total_timeout",
        "run",
    )
    assert "0.2 s" in row["failure"]["message"]
