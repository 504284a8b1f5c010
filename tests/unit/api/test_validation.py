import contextlib
import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.openapi import render
from api.schemas.convert import to_wire
from api.schemas.fields import PATTERN_WORDS
from api.validation import JobChecker, merge_defaults
from core.errors import InvalidRequestError, PayloadTooLargeError
from services.jobspec import Backoff, JobSpec, JunitVerdict, LogVerdict, RetryRule, RewardVerdict
from services.problems import InvalidFieldsError

CHECKER = JobChecker(["unittest", "pytest"])
DIGEST = "sha256:" + "a" * 64

STEP = {"name": "run", "run": "true"}
GO = {"name": "go", "run": "true"}
SETUP = {"name": "setup", "role": "setup", "run": "true"}
CHECK = {"name": "check", "role": "verify", "run": "true"}
FULL_JOB: dict[str, Any] = {
    "key": "django__django-1",
    "kind": "run",
    "image": {"ref": "host"},
    "runtime": "local",
    "labels": {"repo": "django"},
    "priority": -100,
    "resources": {
        "cpu": {"request": 1, "limit": 2.5},
        "memory_mb": {"request": 64, "limit": 128},
        "disk_mb": 10,
        "pids": 64,
    },
    "network": {"mode": "none"},
    "workdir": "/testbed",
    "env": {"TZ": "UTC"},
    "inputs": [
        {"path": "/p.diff", "blob": DIGEST},
        {"path": "/eval.sh", "text": "#!/bin/sh\n", "mode": "0755", "before": "verify"},
    ],
    "steps": [
        {
            "name": "apply",
            "role": "setup",
            "patch": {"path": "/p.diff", "strip": 0, "on_reject": "continue"},
            "timeout": 60,
        },
        {"name": "go", "argv": ["python3", "-c", ""], "cwd": "/usr/lib", "env": {"A": ""}, "blame": "infra"},
        {"name": "check", "role": "verify", "run": "/eval.sh", "timeout": 0.5, "streams": "merged"},
    ],
    "timeouts": {"queue": 60, "start": 10, "run": 50, "idle": 5.5, "total": 100.5, "grace": 0},
    "artifacts": [{"path": "/logs/**", "max_bytes": 10, "when": "failed"}],
    "verdict": {
        "from": "log",
        "parser": "unittest",
        "step": "check",
        "fail_to_pass": ["a"],
        "pass_to_pass": ["b"],
    },
    "trials": {"count": 4, "seed": 7},
    "retry": {
        "infra": {"max": 1, "backoff": {"initial": 0, "factor": 1, "max": 5}},
        "task": {"max": 2},
        "rules": [
            {"when": {"code": "oom_limit"}, "action": "fail"},
            {
                "when": {"class": "task", "exit_code": [75, "100-110"]},
                "action": "retry",
                "max": 2,
                "backoff": {"initial": 30},
            },
            {"when": {"signal": ["SIGKILL", "segv", 6]}, "action": "retry"},
            {"action": "fail"},
        ],
    },
}


def make_job(**changes: Any) -> dict[str, Any]:
    return {"key": "job", "image": "host", "steps": [STEP], **changes}


def check(job: dict[str, Any]) -> JobSpec:
    return CHECKER.check_batch({"jobs": [job]}).jobs.specs[0]


def problems(body: Any) -> dict[str, str]:
    with pytest.raises(InvalidFieldsError) as caught:
        CHECKER.check_batch(body)
    return {problem.field: problem.message for problem in caught.value.problems}


def test_every_field_reaches_the_spec():
    spec = check(FULL_JOB)
    assert (spec.image, spec.runtime, spec.priority, spec.workdir) == ("host", "local", -100, "/testbed")
    assert (spec.resources.cpu_millicores, spec.resources.memory_bytes) == (2500, 128 << 20)
    assert (spec.inputs[0].blob, spec.inputs[1].mode, spec.inputs[1].before) == (DIGEST, 0o755, "check")
    assert spec.steps[0].patch is not None
    assert (spec.steps[0].patch.strip, spec.steps[0].patch.on_reject) == (0, "continue")
    assert (spec.steps[1].argv, spec.steps[1].blame_infra, spec.steps[1].env) == (
        ("python3", "-c", ""),
        True,
        {"A": ""},
    )
    assert (spec.steps[2].merge_streams, spec.steps[2].timeout_seconds) == (True, 0.5)
    assert isinstance(spec.verdict, LogVerdict)
    assert (spec.verdict.fail_to_pass, spec.trials.count, spec.trials.seed) == (("a",), 4, 7)
    assert (spec.retry.infra_max, spec.retry.task_max, spec.retry.cap_seconds) == (1, 2, 5)
    assert (spec.artifacts[0].path, spec.artifacts[0].when) == ("/logs/**", "failed")
    assert (spec.timeouts.run, spec.timeouts.idle) == (50, 5.5)
    assert spec.retry.rules == (
        RetryRule(codes=("oom_limit",), retry=False),
        RetryRule(
            classes=("task",), exit_codes=((75, 75), (100, 110)), max=2, backoff=Backoff(30.0, 2.0, 60.0)
        ),
        RetryRule(signals=(9, 11, 6)),
        RetryRule(retry=False),
    )


def test_what_is_shown_is_read_back_as_the_same_spec():
    spec = check(FULL_JOB)
    assert check(to_wire(spec)) == spec
    assert JobSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ({"from": "reward", "path": "/r.json", "key": "score", "pass_at": 0.5}, RewardVerdict),
        ({"from": "junit", "path": "/j.xml", "require": ["a"], "allow_skip": False}, JunitVerdict),
    ],
)
def test_verdict_kinds_round_trip(verdict, kind):
    spec = check(make_job(verdict=verdict))
    assert isinstance(spec.verdict, kind)
    assert to_wire(spec)["verdict"] == verdict


SEVEN_DAYS = 7 * 86400


def rules(*changes: dict[str, Any]) -> dict[str, Any]:
    """A retry policy of rules that are right but for these changes."""
    return {"rules": [{"action": "retry", **change} for change in changes]}


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"key": ""}, "key", "must be"),
    ({"key": "a b"}, "key", "must be"),
    ({"key": "x" * 201}, "key", "must be"),
    ({"key": "a\n"}, "key", "must be"),
    ({"kind": "session"}, "kind", "not supported yet"),
    ({"image": 1}, "image", "name"),
    ({"image": ""}, "image", "must be"),
    ({"image": "-v"}, "image", "must be"),
    ({"image": "snapshot:wire-0123456789abcdef-1"}, "image", "snapshotId"),
    ({"image": {"ref": "host", "build": {}}}, "image.build", "not supported yet"),
    ({"runtime": "kubernetes"}, "runtime", "must be"),
    ({"priority": 101}, "priority", "at most"),
    ({"priority": True}, "priority", "whole number"),
    ({"priority": "1"}, "priority", "whole number"),
    ({"priority": 1.0}, "priority", "whole number"),
    ({"labels": {"a": 1}}, "labels.a", "text"),
    ({"labels": {"": "x"}}, "labels.", "must be"),
    ({"labels": {"a": "x\ny"}}, "labels.a", "control"),
    ({"labels": {str(n): "" for n in range(65)}}, "labels", "64"),
    ({"resources": {"cpu": 0}}, "resources.cpu", "at least"),
    ({"resources": {"cpu": -1}}, "resources.cpu", "at least"),
    ({"resources": {"cpu": "1"}}, "resources.cpu", "number"),
    ({"resources": {"cpu": True}}, "resources.cpu", "number"),
    ({"resources": {"cpu": {"request": 2, "limit": 1}}}, "resources.cpu", "exceed"),
    ({"resources": {"memory_mb": 1 << 60}}, "resources.memory_mb", "at most"),
    ({"resources": {"memory_mb": 64.5}}, "resources.memory_mb", "whole"),
    ({"resources": {"pids": 0}}, "resources.pids", "at least"),
    ({"resources": {"gpu": -1}}, "resources.gpu", "0"),
    ({"network": {"mode": "public"}}, "network.mode", "not supported yet"),
    ({"network": {"mode": "none", "allow": []}}, "network.allow", "unknown"),
    ({"workdir": "testbed"}, "workdir", "absolute"),
    ({"workdir": "/a/../b"}, "workdir", "'..'"),
    ({"env": {"1A": "x"}}, "env.1A", "must be"),
    ({"env": {"A=B": "x"}}, "env.A=B", "must be"),
    ({"env": {"A": "\0"}}, "env.A", "NUL"),
    ({"env": {"TRIAL_INDEX": "1"}}, "env.TRIAL_INDEX", "set by Sandmill"),
    ({"env": {"TRIAL_SEED": "1"}}, "env.TRIAL_SEED", "set by Sandmill"),
    ({"env": {"SANDMILL_X": "1"}}, "env.SANDMILL_X", "set by Sandmill"),
    ({"steps": [{"name": "a", "run": "x", "env": {"EXECD_ENVS": ""}}]}, "steps[0].env.EXECD_ENVS", "set by"),
    ({"env": {"A": "x" * 65537}}, "env.A", "65536"),
    ({"inputs": [{"path": "/a"}]}, "inputs[0]", "exactly one"),
    ({"inputs": [{"path": "/a", "text": "", "blob": DIGEST}]}, "inputs[0]", "exactly one"),
    ({"inputs": [{"path": "/a", "blob": "sha256:xyz"}]}, "inputs[0].blob", "must be"),
    ({"inputs": [{"path": "/a", "base64": "a"}]}, "inputs[0].base64", "base64"),
    ({"inputs": [{"path": "/a", "text": "x" * ((1 << 20) + 1)}]}, "inputs[0].text", "1048576"),
    ({"inputs": [{"path": "/a", "text": "", "mode": "999"}]}, "inputs[0].mode", "must be"),
    ({"inputs": [{"path": "/a", "text": "", "mode": 644}]}, "inputs[0].mode", "text"),
    ({"inputs": [{"path": "/a", "text": "", "mode": "4755"}]}, "inputs[0].mode", "must be"),
    ({"inputs": [{"path": "/a", "text": "", "before": "nowhere"}]}, "inputs[0].before", "no step"),
    ({"inputs": [{"path": "/a", "text": ""}, {"path": "/a", "text": ""}]}, "inputs[1].path", "another"),
    (
        {"inputs": [{"path": "/a", "text": "", "before": b} for b in ("run", "go")], "steps": [GO]},
        "inputs[1].path",
        "another",
    ),
    (
        {"inputs": [{"path": "/a/b/c", "text": ""}, {"path": "/a", "text": ""}]},
        "inputs[0].path",
        "lies below",
    ),
    (
        {"inputs": [{"path": p, "text": "", "before": b} for p, b in (("/a", None), ("/a/b", "run"))]},
        "inputs[1].path",
        "lies below",
    ),
    ({"inputs": [{"path": "/workspace", "text": ""}]}, "inputs[0].path", "workdir"),
    ({"inputs": [{"path": "/w", "text": ""}], "workdir": "/w/x"}, "inputs[0].path", "workdir"),
    ({"steps": []}, "steps", "at least one step is needed"),
    ({"steps": [{"name": "a"}]}, "steps[0]", "exactly one"),
    ({"steps": [{"name": "a", "run": "x", "argv": ["x"]}]}, "steps[0]", "exactly one"),
    ({"steps": [{"name": "A", "run": "x"}]}, "steps[0].name", "must be"),
    ({"steps": [STEP, STEP]}, "steps[1].name", "another step"),
    ({"steps": [CHECK, STEP, SETUP]}, "steps[2].role", "cannot come after a verify step"),
    ({"steps": [{"name": "a", "run": "x\0"}]}, "steps[0].run", "NUL"),
    ({"steps": [{"name": "a", "run": ""}]}, "steps[0].run", "must not be empty"),
    ({"steps": [{"name": "a", "run": "x" * ((1 << 20) + 1)}]}, "steps[0].run", "1048576"),
    ({"steps": [{"name": "a", "argv": []}]}, "steps[0].argv", "at least one word"),
    ({"steps": [{"name": "a", "argv": [""]}]}, "steps[0]", "argv[0]"),
    ({"steps": [{"name": "a", "run": "x", "timeout": 0}]}, "steps[0].timeout", "greater than 0"),
    ({"steps": [{"name": "a", "run": "x", "timeout": float("inf")}]}, "steps[0].timeout", "finite"),
    ({"steps": [{"name": "a", "run": "x", "timeout": float("nan")}]}, "steps[0].timeout", "finite"),
    ({"steps": [{"name": "a", "run": "x", "timeout": SEVEN_DAYS + 1}]}, "steps[0].timeout", "at most"),
    ({"steps": [{"name": "a", "run": "x", "timeout": "60"}]}, "steps[0].timeout", "number"),
    ({"steps": [{"name": "a", "run": "x", "role": "eval"}]}, "steps[0].role", "must be"),
    ({"steps": [{"name": "a", "run": "x", "stdin": "/in"}]}, "steps[0].stdin", "not supported yet"),
    ({"steps": [{"name": "a", "patch": {"path": "p.diff"}}]}, "steps[0].patch.path", "absolute"),
    ({"timeouts": {"grace": -1}}, "timeouts.grace", "at least"),
    ({"timeouts": {"total": None}}, "timeouts.total", "number"),
    ({"artifacts": [{"path": "/a/*/b"}]}, "artifacts[0].path", "last part"),
    ({"artifacts": [{"path": "/a", "max_bytes": 0}]}, "artifacts[0].max_bytes", "at least"),
    ({"verdict": {}}, "verdict", "from"),
    ({"verdict": {"from": "vibes"}}, "verdict", "from"),
    ({"verdict": {"from": "log"}}, "verdict.parser", "required"),
    ({"verdict": {"from": "log", "parser": "nope"}}, "verdict.parser", "there are: pytest, unittest"),
    ({"verdict": {"from": "log", "parser": "unittest", "step": "x"}}, "verdict.step", "no step"),
    (
        {
            "verdict": {
                "from": "log",
                "parser": "unittest",
                "fail_to_pass": ["a", "b"],
                "pass_to_pass": ["c", "b"],
            }
        },
        "verdict.pass_to_pass[1]",
        "fail_to_pass too",
    ),
    ({"verdict": {"from": "exit_code", "step": "x"}}, "verdict.step", "no step"),
    ({"verdict": {"from": "exit_code", "pass": [256]}}, "verdict.pass[0]", "at most"),
    ({"verdict": {"from": "reward", "path": "/r", "pass_at": float("nan")}}, "verdict.pass_at", "finite"),
    ({"verdict": {"from": "exit_code", "on_timeout": "fail"}}, "verdict.on_timeout", "not supported yet"),
    ({"trials": {"count": 0}}, "trials.count", "at least"),
    ({"trials": {"count": 100_001}}, "trials.count", "at most"),
    ({"trials": {"seed": 1 << 63}}, "trials.seed", "at most"),
    ({"trials": {"stop": "first"}}, "trials.stop", "first_pass"),
    ({"retry": {"infra": {"max": 11}}}, "retry.infra.max", "at most"),
    ({"retry": {"infra": {"avoid_node": 1}}}, "retry.infra.avoid_node", "true or false"),
    ({"timeouts": {"run": 0}}, "timeouts.run", "greater than 0"),
    ({"timeouts": {"idle": 8 * 86400}}, "timeouts.idle", "at most 604800"),
    ({"timeouts": {"heartbeat": 1}}, "timeouts.heartbeat", "unknown field"),
    ({"retry": rules({"when": {"class": "user"}})}, "retry.rules[0].when.class", "'task' or 'infra'"),
    (
        {"retry": rules({"when": {"class": ["infra", "spec"]}})},
        "retry.rules[0].when.class[1]",
        "never retried",
    ),
    ({"retry": rules({"when": {"class": []}})}, "retry.rules[0].when.class", "leave the field out"),
    ({"retry": rules({"when": {"code": "oom"}})}, "retry.rules[0].when.code", "no failure has this code"),
    ({"retry": rules({"when": {"code": "node-lost"}})}, "retry.rules[0].when.code", "mean 'node_lost'"),
    (
        {"retry": rules({"when": {"code": ["unknown", "image_not_found"]}})},
        "retry.rules[0].when.code[1]",
        "never retried",
    ),
    ({"retry": rules({"when": {"code": 5}})}, "retry.rules[0].when.code", "text"),
    ({"retry": rules({"when": {"exit_code": 256}})}, "retry.rules[0].when.exit_code", "0 to 255"),
    ({"retry": rules({"when": {"exit_code": ["9-1"]}})}, "retry.rules[0].when.exit_code[0]", "a range"),
    ({"retry": rules({"when": {"exit_code": True}})}, "retry.rules[0].when.exit_code", "a range"),
    ({"retry": rules({"when": {"exit_code": "1-2-3"}})}, "retry.rules[0].when.exit_code", "a range"),
    ({"retry": rules({"when": {"signal": "SIGNOPE"}})}, "retry.rules[0].when.signal", "SIGKILL"),
    ({"retry": rules({"when": {"signal": [9, 65]}})}, "retry.rules[0].when.signal[1]", "1 to 64"),
    ({"retry": rules({"when": {"signal": ""}})}, "retry.rules[0].when.signal", "SIGKILL"),
    ({"retry": rules({"when": {"reason": "x"}})}, "retry.rules[0].when.reason", "unknown field"),
    ({"retry": rules({"when": {"exit_code": 1, "signal": 9}})}, "retry.rules[0].when", "use two rules"),
    ({"retry": rules({"action": "again"})}, "retry.rules[0].action", "must be 'retry' or 'fail'"),
    ({"retry": {"rules": [{"when": {}}]}}, "retry.rules[0].action", "required"),
    ({"retry": rules({"action": "fail", "max": 1})}, "retry.rules[0]", "neither max nor backoff"),
    ({"retry": rules({"max": 0})}, "retry.rules[0].max", "at least 1"),
    ({"retry": rules({"max": 4})}, "retry.rules[0].max", "more than the budget of the class, which is 3"),
    ({"retry": rules({"backoff": {"initial": -1}})}, "retry.rules[0].backoff.initial", "at least 0"),
    ({"retry": rules({"when": {"class": "task"}})}, "retry.rules[0].action", "retry.task.max is 0"),
    ({"retry": rules({}, {"when": {"signal": 9}})}, "retry.rules[1]", "never reached"),
    ({"retry": rules(*[{"when": {"signal": 9}}] * 21)}, "retry.rules", "at most 20"),
    ({"secrets": []}, "secrets", "not supported yet"),
    ({"needs": [{"job": "a", "outcome": "error"}]}, "needs[0].outcome", "finished"),
    ({"dedupe": "off"}, "dedupe", "not supported yet"),
    ({"user": 0}, "user", "not supported yet"),
    ({"timeout": 5}, "timeout", "unknown field"),
]


@pytest.mark.parametrize(("change", "field", "words"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_a_bad_field_is_named_with_what_is_wrong(change, field, words):
    found = problems({"jobs": [make_job(), make_job(**{"key": "other", **change})]})
    assert [name for name in found if name.startswith(f"jobs[1].{field}")], found
    assert any(words in message for message in found.values()), found


@pytest.mark.parametrize(
    ("change", "field"), [row[:2] for row in BAD_FIELDS], ids=lambda value: str(value)[:60]
)
def test_what_is_wrong_is_said_in_words(change, field):
    found = problems({"jobs": [make_job(**change)]})
    messages = [message for name, message in found.items() if name.startswith(f"jobs[0].{field}")]
    assert messages
    assert not re.search(
        r"\^|\$|\[A-Z|validation|[Ii]nput should|string should|pydantic|\.0$", " ".join(messages)
    )


def test_every_expression_has_words_of_its_own():
    def patterns(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            yield from (name for name in value.get("patternProperties", {}))
            for inner in value.values():
                yield from patterns(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from patterns(inner)

    assert set(patterns(json.loads(render()))) == set(PATTERN_WORDS)


PATHS = [
    ("", "absolute"),
    ("a", "absolute"),
    ("/", "name a file"),
    ("/a/../b", "'..'"),
    ("/..", "'..'"),
    ("/a//b", "normalised"),
    ("//a", "normalised"),
    ("/a/", "normalised"),
    ("/a/./b", "normalised"),
    ("/a\0b", "control"),
    ("/a\nb", "control"),
    ("/a\u2028b", "control"),
    ("/" + "a" * 256, "255 per part"),
    ("/" + "é" * 128, "255 per part"),
    ("/a" * 2048, "4095"),
    ("/proc/self/mem", "under /proc"),
    ("/sys/x", "under /sys"),
    ("/dev/shm/x", "under /dev"),
    ("/.sbx/lib/ld.so", "under /.sbx"),
    ("/usr/bin/python3", "under /usr"),
    ("/bin/sh", "under /bin"),
    ("/lib64/x", "under /lib64"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "words"), PATHS, ids=[repr(path)[:20] for path, _ in PATHS])
def test_path_tricks_are_refused(path, words):
    found = problems({"jobs": [make_job(inputs=[{"path": path, "text": ""}])]})
    assert words in found["jobs[0].inputs[0].path"]


@pytest.mark.parametrize(
    "path", ["/a..b", "/...", "/a\\b", "/-rf", "/\u202ex", "/usrlocal", "/a b'\"", "/" + "é" * 127]
)
def test_odd_but_legal_paths_are_kept(path):
    assert check(make_job(inputs=[{"path": path, "text": ""}])).inputs[0].path == path


def test_before_takes_a_step_name_first_then_the_first_step_of_that_role():
    steps = [
        {"name": "one", "role": "verify", "run": "true"},
        {"name": "two", "role": "verify", "run": "true"},
        {"name": "setup", "run": "true"},
    ]
    inputs = [{"path": f"/{n}", "text": "", "before": b} for n, b in enumerate(["two", "verify", "setup"])]
    assert [item.before for item in check(make_job(steps=steps, inputs=inputs)).inputs] == [
        "two",
        "one",
        "setup",
    ]


def test_everything_wrong_is_told_at_once():
    body = {
        "priority": 1000,
        "name": "",
        "jobs": [make_job()],
        "project": "x",
    }
    assert problems(body) == {
        "name": "must not be empty",
        "priority": "must be at most 100",
        "project": "unknown field",
    }


def test_problems_of_many_jobs_are_listed_up_to_fifty():
    with pytest.raises(InvalidFieldsError) as caught:
        CHECKER.check_batch({"jobs": [make_job(key=f"k{n}", steps=[]) for n in range(100)]})
    assert len(caught.value.problems) == 50
    assert caught.value.problems[3].field == "jobs[3].steps"
    assert "and 99 more" in caught.value.message


def test_a_mistake_in_the_defaults_is_told_once_and_there():
    body = {
        "defaults": {"image": "host", "steps": [{"name": "run", "run": "x", "timeout": -1}], "color": "red"},
        "jobs": [{"key": f"k{n}"} for n in range(5)],
    }
    assert list(problems(body)) == ["defaults.steps[0].timeout", "defaults.color"]


def test_what_is_missing_inside_the_defaults_is_told_there():
    body = {"defaults": {"image": "host", "steps": [{"run": "x"}]}, "jobs": [{"key": "a"}, {"key": "b"}]}
    assert list(problems(body)) == ["defaults.steps[0].name"]


def test_what_a_job_misses_is_told_at_the_job():
    assert list(problems({"jobs": [{"key": "a", "image": "host"}, {"image": "host", "steps": [STEP]}]})) == [
        "jobs[0].steps",
        "jobs[1].key",
    ]


def test_a_mistake_in_a_plain_amount_is_told_once():
    with pytest.raises(InvalidFieldsError) as caught:
        CHECKER.check_job(make_job(resources={"cpu": -1}))
    assert caught.value.message == "resources.cpu: must be at least 0.01"
    assert len(caught.value.problems) == 1


def test_a_key_in_the_defaults_is_refused():
    body = {"defaults": make_job(), "jobs": [{"key": "a"}, {"key": "b"}]}
    assert problems(body) == {"defaults.key": "a key belongs to one job: give each its own"}


def test_the_test_runtime_is_named_only_where_it_is_offered():
    body = {"jobs": [make_job(runtime="podman")]}
    assert problems(body) == {"jobs[0].runtime": "must be 'local' or 'docker'"}
    with pytest.raises(InvalidFieldsError, match="must be 'local' or 'docker' or 'fake'"):
        JobChecker([], ["local", "fake"]).check_batch(body)
    assert check(make_job(runtime="fake")).runtime == "fake"


@pytest.mark.parametrize(
    "inputs",
    [
        [{"path": "/a", "text": ""}, {"path": "/a", "text": "", "before": "run"}],
        [{"path": "/a", "text": ""}, {"path": "/ab", "text": ""}, {"path": "/a-b/c", "text": ""}],
        [{"path": "/workspace/a", "text": ""}, {"path": "/work", "text": ""}],
    ],
    ids=["replaced later", "same beginning", "beside and below workdir"],
)
def test_inputs_that_only_look_alike_are_accepted(inputs):
    assert len(check(make_job(inputs=inputs)).inputs) == len(inputs)


def test_steps_may_verify_and_run_in_any_order_after_setting_up():
    steps = [SETUP, STEP, CHECK, GO]
    assert [step.name for step in check(make_job(steps=steps)).steps] == ["setup", "run", "check", "go"]


def test_reserved_names_are_told_by_whole_names():
    env = {"MY_TRIAL_INDEX": "", "TRIAL_INDEXES": "", "SANDMILL": "", "EXECDX": ""}
    assert check(make_job(env=env)).env == env


def test_equal_keys_are_refused():
    assert problems({"jobs": [make_job(), make_job()]}) == {"jobs[1].key": "the same as that of jobs[0]"}


def test_too_many_trials_in_all_are_refused():
    jobs = [make_job(key=f"k{n}", trials={"count": 1000}) for n in range(101)]
    assert "100000" in problems({"jobs": jobs})["jobs"]


@pytest.mark.parametrize("jobs", [[], {}, None, [1], ["x"], [[]], [make_job()] * 10_001])
def test_jobs_that_are_no_list_of_objects_are_refused(jobs):
    assert all(field.startswith("jobs") for field in problems({"jobs": jobs}))


@pytest.mark.parametrize("body", [None, 1, "x", [], True, {}])
def test_a_body_that_is_no_batch_is_refused(body):
    assert problems(body)


def test_defaults_that_unfold_beyond_the_limit_are_refused():
    body = {"defaults": {"env": {"A": "x" * 60_000}}, "jobs": [make_job(key=f"k{n}") for n in range(5000)]}
    with pytest.raises(PayloadTooLargeError, match="blobs"):
        CHECKER.check_batch(body)


def test_merging_changes_neither_side_and_replaces_a_verdict_of_another_kind():
    defaults = {"env": {"A": "1"}, "verdict": {"from": "log", "parser": "x"}, "steps": [1]}
    job = {"env": {"B": "2"}, "verdict": {"from": "exit_code"}, "steps": [2]}
    before = copy.deepcopy((defaults, job))
    assert merge_defaults(defaults, job) == {
        "env": {"A": "1", "B": "2"},
        "verdict": {"from": "exit_code"},
        "steps": [2],
    }
    assert (defaults, job) == before


@given(st.data())
def test_a_damaged_job_is_refused_or_read_but_breaks_nothing(data):
    job = copy.deepcopy(FULL_JOB)
    for _ in range(data.draw(st.integers(1, 3))):
        _damage(data, job)
    with contextlib.suppress(InvalidRequestError):
        spec = check(job)
        assert check(to_wire(spec)) == spec


JUNK = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, "", "x", "..", "\0", [], {}, [[]], [1], {"a": 1}, "/", "é" * 300]
)


def _damage(data: st.DataObject, value: Any) -> None:
    """Walk down to a random place and put junk there."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(value[key], dict | list) and data.draw(st.booleans()):
            value = value[key]
            continue
        value[key] = data.draw(JUNK)
        return
