"""What the builders write is what the server's own schemas take: checked against those, not against a copy."""

from typing import Any

import pytest

from api.validation import JobChecker
from sandmill import (
    Artifact,
    Concurrency,
    ExitCodeVerdict,
    Input,
    Job,
    JobDefaults,
    JunitVerdict,
    LogVerdict,
    PatchStep,
    Placement,
    Resources,
    Retry,
    RetryRule,
    RewardVerdict,
    Step,
    Timeouts,
    Trials,
    Verdict,
)

DIGEST = "sha256:" + "0" * 64
CHECKER = JobChecker(["unittest"])

FULL = Job(
    key="full",
    image="host",
    runtime="local",
    labels={"a": "b"},
    priority=-3,
    queue="evals",
    preemptible=True,
    placement=Placement(labels={"zone": "a"}),
    resources=Resources(cpu=1.5, memory_mb=64, disk_mb=10, pids=20, gpu=1),
    workdir="/testbed",
    env={"A": "1"},
    inputs=[
        Input("/a", text="t", mode="0755"),
        Input("/b", data=b"\xff\x00"),
        Input("/c", blob=DIGEST, before="verify"),
    ],
    steps=[
        PatchStep("apply", "/p.diff", role="setup", strip=0, on_reject="continue", cwd="/x", timeout=5),
        Step("run", "echo", cwd="/x", env={"B": "2"}, timeout=1.5, streams="merged", blame="infra"),
        Step("verify", argv=("python3", "-V"), role="verify"),
    ],
    timeouts=Timeouts(queue=1, start=2, run=2.5, idle=1.5, total=3, grace=4),
    artifacts=[Artifact("/logs/**", max_bytes=10, when="failed")],
    verdict=LogVerdict("unittest", "verify", ["t.A.b"], ("t.A.c",)),
    trials=Trials(4, seed=9, stop="first_pass"),
    retry=Retry(
        infra=1,
        task=2,
        initial=0.5,
        factor=3,
        cap=9,
        avoid_node=False,
        rules=[
            RetryRule(action="fail", code="oom_limit"),
            RetryRule(
                action="retry", failure_class="task", exit_code=[75, "100-110"], max=1, initial=5, cap=6
            ),
            RetryRule(action="retry", signal=["SIGKILL", 6]),
        ],
    ),
)


def check(job: Job) -> Any:
    return CHECKER.check_batch({"jobs": [job.to_json()]}).jobs.specs[0]


def test_every_field_reaches_the_server() -> None:
    spec = check(FULL).to_json()
    assert (spec["key"], spec["image"], spec["runtime"], spec["priority"]) == ("full", "host", "local", -3)
    assert (spec["queue"], spec["preemptible"], spec["node_labels"]) == ("evals", True, {"zone": "a"})
    assert spec["resources"] == {
        "cpu_millicores": 1500, "memory_bytes": 64 << 20, "disk_bytes": 10 << 20, "pids": 20,
        "gpu": 1,
    }  # fmt: skip
    assert [(item["path"], item["before"]) for item in spec["inputs"]] == [
        ("/a", None), ("/b", None), ("/c", "verify"),
    ]  # fmt: skip
    assert spec["inputs"][0]["mode"] == 0o755
    apply, run, verify = spec["steps"]
    assert apply["patch"] == {"path": "/p.diff", "strip": 0, "on_reject": "continue"}
    assert (run["env"], run["timeout_seconds"], run["merge_streams"], run["blame_infra"]) == (
        {"B": "2"}, 1.5, True, True,
    )  # fmt: skip
    assert (list(verify["argv"]), verify["role"]) == (["python3", "-V"], "verify")
    assert spec["timeouts"] == {"queue": 1, "start": 2, "run": 2.5, "idle": 1.5, "total": 3, "grace": 4}
    assert spec["trials"] == {"count": 4, "seed": 9, "stop": "first_pass"}
    rules = spec["retry"].pop("rules")
    assert [(rule["retry"], list(rule["codes"]), list(rule["classes"])) for rule in rules] == [
        (False, ["oom_limit"], []), (True, [], ["task"]), (True, [], []),
    ]  # fmt: skip
    assert [list(pair) for pair in rules[1]["exit_codes"]] == [[75, 75], [100, 110]]
    assert (rules[1]["max"], rules[1]["backoff"]) == (1, {"initial": 5, "factor": 2, "cap": 6})
    assert list(rules[2]["signals"]) == [9, 6]
    assert spec["retry"] == {
        "infra_max": 1, "task_max": 2, "initial_seconds": 0.5, "factor": 3, "cap_seconds": 9,
        "avoid_node": False,
    }  # fmt: skip
    assert list(spec["verdict"]["pass_to_pass"]) == ["t.A.c"]
    assert [(rule["path"], rule["when"]) for rule in spec["artifacts"]] == [("/logs/**", "failed")]


def test_caps_of_a_batch_reach_the_server() -> None:
    caps = Concurrency(max=64, per_label={"repo": 8})
    batch = CHECKER.check_batch({"concurrency": caps.to_json(), "jobs": [FULL.to_json()]})
    assert (batch.caps.max_running, batch.caps.max_per_label) == (64, {"repo": 8})


def test_bytes_arrive_as_they_are() -> None:
    batch = CHECKER.check_batch({"jobs": [FULL.to_json()]})
    assert b"\xff\x00" in batch.jobs.files.values()


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (ExitCodeVerdict(), "exit_code"),
        (ExitCodeVerdict(step="run", pass_codes=[0, 3]), "exit_code"),
        (RewardVerdict("/r.json", key="score", pass_at=0.5), "reward"),
        (JunitVerdict("/j.xml", require=["a"], allow_skip=False), "junit"),
        (LogVerdict("unittest"), "log"),
    ],
)
def test_each_verdict_is_taken(verdict: Verdict, kind: str) -> None:
    job = Job(key="k", image="host", steps=[Step("run", "true")], verdict=verdict)
    assert check(job).verdict.kind == kind


def test_what_is_left_out_is_left_to_the_server() -> None:
    assert Job(key="k", image="host", steps=[Step("run", "true")]).to_json() == {
        "key": "k",
        "image": "host",
        "steps": [{"name": "run", "run": "true"}],
    }
    assert Retry(task=1).to_json() == {"task": {"max": 1}}


def test_job_overrides_the_defaults() -> None:
    defaults = JobDefaults(image="host", steps=[Step("run", "true")], env={"A": "1", "B": "1"})
    body = {"defaults": defaults.to_json(), "jobs": [Job(key="k", env={"B": "2"}).to_json()]}
    assert CHECKER.check_batch(body).jobs.specs[0].env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Input("/a"),
        lambda: Input("/a", text="t", blob=DIGEST),
        lambda: Step("s"),
        lambda: Step("s", "true", argv=["true"]),
    ],
)
def test_ambiguous_parts_cannot_be_made(make) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        make()


def test_shell_line_in_place_of_words_is_refused() -> None:
    with pytest.raises(TypeError, match="list of words"):
        Step("s", argv="echo hi")
