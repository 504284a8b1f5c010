from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.ids import new_id
from repositories.nodes import NodeCapacity
from repositories.quotas import QuotaStanding
from repositories.trials_read import TrialRow
from services.waiting import lacking_quota, reason_to_wait

NOW = datetime.now(UTC)


def make_trial(*, state="queued", runtime="docker", cpu=2000, memory=2 << 30, **changes):
    return TrialRow(
        id=new_id(), batch_id=new_id(), job_id=new_id(), job_key="job", labels={}, index=0, seed=None,
        state=state, state_reason=None, outcome=None, failure=None, rewards=None, desired="run", priority=0,
        cancel_reason=None, is_paused=False, retry_of=None, superseded_by=None, grade_no=0, replay_of=None,
        attempts_used=0, infra_losses=0, task_retries=0, runtime=runtime, cpu_millicores=cpu, memory_bytes=memory,
        created_at=NOW, queued_at=NOW, started_at=None, finished_at=None,
        **{"gpu": 0, "queue": "default", "node_labels": {}, "max_cpu_seconds": 10.0, "is_before_gate": False} | changes,
    )  # fmt: skip


def make_node(*runtimes, cpu=2000, memory=2 << 30):
    return NodeCapacity(frozenset(runtimes), cpu, memory)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([], "no_node"),
        ([make_node("local")], "no_node_offers_runtime"),
        ([make_node("local"), make_node("local", "docker")], None),
        ([make_node("docker", cpu=1999)], "too_large_for_any_node"),
        ([make_node("docker", memory=(2 << 30) - 1)], "too_large_for_any_node"),
        ([make_node("docker", cpu=1999), make_node("docker", memory=1)], "too_large_for_any_node"),
        ([make_node("docker", cpu=1), make_node("local", cpu=9000)], "too_large_for_any_node"),
    ],
    ids=["none", "other runtime", "fits", "cpu", "memory", "each lacks one", "large one of another runtime"],
)
def test_a_trial_that_no_empty_node_could_take_says_why(nodes, reason):
    assert reason_to_wait(make_trial(), nodes) == reason


@pytest.mark.parametrize("state", ["running", "retry_wait", "finished"])
def test_only_queued_trials_wait_for_nodes(state):
    assert reason_to_wait(make_trial(state=state), []) is None


def test_labels_and_gpus_are_looked_for_too():
    plain, labelled = (
        make_node("docker"),
        NodeCapacity(frozenset({"docker"}), 9000, 1 << 40, 0, {"zone": "a"}),
    )
    assert reason_to_wait(make_trial(node_labels={"zone": "b"}), [plain, labelled]) == "no_node_has_labels"
    assert reason_to_wait(make_trial(node_labels={"zone": "a"}), [plain, labelled]) is None
    assert reason_to_wait(make_trial(gpu=1), [plain, labelled]) == "too_large_for_any_node"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"is_paused": True}, "paused"),
        ({"starts_left": 0.0}, "quota"),
        ({"cpu_left": 1999.0}, "quota"),
        ({"memory_left": 1.0}, "quota"),
        ({"budget_left": 9.0}, "quota"),
        ({"gpu_left": 0.0}, None),
    ],
)
def test_a_quota_that_is_used_up_is_told(changes, reason):
    standing = replace(QuotaStanding(False, 5.0, None, None, None, None), **changes)
    assert reason_to_wait(make_trial(), [make_node("docker")], standing) == reason


def test_gpu_quota_is_told_to_who_wants_gpus():
    node = NodeCapacity(frozenset({"docker"}), 9000, 1 << 40, 4)
    standing = QuotaStanding(False, 5.0, None, None, 0.0, None)
    assert reason_to_wait(make_trial(gpu=1), [node], standing) == "quota"


def test_a_stopped_queue_and_a_cap_are_told():
    nodes = [make_node("docker")]
    assert reason_to_wait(make_trial(), nodes, None, {"default": True}) == "paused"
    assert reason_to_wait(make_trial(), nodes, None, {"default": False}) == "queue"
    assert reason_to_wait(make_trial(is_before_gate=True), nodes) == "concurrency"


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, None),
        ({"running_left": 0.0, "starts_left": 0.0}, ("max_running", 1.0, 0.0)),
        ({"running_left": 3.0, "starts_left": 0.0}, ("rate_per_second", 1.0, 0.0)),
        ({"cpu_left": 1999.0}, ("max_cpu_millicores", 2000, 1999.0)),
        ({"memory_left": 1.0}, ("max_memory_bytes", 2 << 30, 1.0)),
        ({"gpu_left": 0.0}, None),
        ({"budget_left": 9.0}, ("budget_cpu_seconds", 10.0, 9.0)),
    ],
    ids=str,
)
def test_the_quota_that_is_used_up_is_named(changes, lacking):
    standing = replace(QuotaStanding(False, 5.0, None, None, None, None), **changes)
    assert lacking_quota(make_trial(), standing) == lacking
