"""Trials, attempts, reports and artifacts as a client sees them after real attempts."""

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from core.blobstore import BlobStore
from core.errors import FailureClass
from services.outcomes import Failure
from tests.integration.api.conftest import ApiWorld, make_batch, make_job, submit

pytestmark = pytest.mark.breaks_invariants(
    "log_has_gap", reason="ends tell of ten bytes that were never written"
)

STEPS = [
    {"name": "setup", "role": "setup", "exit_code": 0, "duration_ms": 5, "timed_out": False, "oom": False},
    {"name": "verify", "role": "verify", "exit_code": 1, "duration_ms": 50, "of_a_later_release": True},
]
GRADE = {
    "outcome": "failed",
    "failure": None,
    "rewards": {"reward": 0.5},
    "test_counts": {"passed": 3, "failed": 1},
    "tests": {"a": "passed"},
    "fail_to_pass": {"passed": 0, "total": 1, "failed": ["t.a"]},
    "pass_to_pass": None,
}
FAILURE = Failure(FailureClass.TASK, "tests_failed", "1 of 4", step="verify", exit_code=1).to_json()


def run_one(api: ApiWorld, **changes: Any) -> dict[str, Any]:
    """Dispatch the oldest queued trial, claim and finish it as a worker does; gives its row."""
    world = api.world
    seat = world.session(slots=1)
    world.dispatcher.tick()
    claimed = seat.claim(world.bells.rung[-1])
    assert claimed is not None
    assert seat.start(claimed)
    assert seat.finish(claimed, **changes)
    return world.trial(claimed.trial_id)


@pytest.fixture
def graded(own_api: ApiWorld) -> dict[str, Any]:
    batch = submit(
        own_api.client, make_batch(name="b", jobs=[make_job(labels={"repo": "r"}, trials={"count": 2})])
    )
    trial = run_one(
        own_api,
        outcome="failed",
        reason="tests_failed",
        failure=json.dumps(FAILURE),
        steps=json.dumps(STEPS),
        grade=json.dumps(GRADE),
        rewards='{"reward": 0.5}',
        usage='{"cpu_seconds": 1.5}',
        log_bytes=10,
        truncated_bytes=4,
    )
    return {"batch": batch["id"], "trial": str(trial["id"])}


def test_a_trial_shows_its_attempt_steps_failure_and_tests(own_api, graded):
    trial = own_api.client.get(f"/v1/trials/{graded['trial']}").json()

    assert (trial["state"], trial["outcome"], trial["rewards"]) == ("finished", "failed", {"reward": 0.5})
    assert trial["failure"] == {**FAILURE, "class": "task", "retry_after_seconds": None}
    (attempt,) = trial["attempts"]
    assert (attempt["number"], attempt["state"], attempt["outcome"], attempt["node"]) == (
        1,
        "finished",
        "failed",
        "n",
    )
    assert [(s["name"], s["role"], s["exit_code"], s["duration_ms"]) for s in attempt["steps"]] == [
        ("setup", "setup", 0, 5),
        ("verify", "verify", 1, 50),
    ]
    assert attempt["tests"] == {
        "counts": {"passed": 3, "failed": 1},
        "fail_to_pass": {"passed": 0, "total": 1, "failed": ["t.a"]},
        "pass_to_pass": None,
    }
    assert attempt["usage"] == {"cpu_seconds": 1.5}
    assert attempt["log"] == {"bytes": 10, "truncated_bytes": 4, "closed": True}
    assert own_api.client.get(f"/v1/attempts/{attempt['id']}").json() == attempt


def reasons(api: ApiWorld, batch_id: str) -> list[str | None]:
    """The reasons of a batch's trials, which the list and each by itself must agree on."""
    items = api.client.get(f"/v1/batches/{batch_id}/trials").json()["items"]
    alone = [api.client.get(f"/v1/trials/{item['id']}").json()["state_reason"] for item in items]
    assert [item["state_reason"] for item in items] == alone
    return alone


def test_a_queued_trial_that_cannot_start_says_what_is_missing(own_api):
    jobs = [
        make_job(key="fits"),
        make_job(key="elsewhere", runtime="docker"),
        make_job(key="large", resources={"cpu": 65}),
    ]
    batch = submit(own_api.client, make_batch(jobs=jobs))["id"]
    assert reasons(own_api, batch) == ["no_node"] * 3

    seat = own_api.world.session(cpu_millicores=64_000)
    assert reasons(own_api, batch) == [None, "no_node_offers_runtime", "too_large_for_any_node"]

    node = {"id": seat.node_id}
    own_api.rows("UPDATE nodes SET cordoned_at = now() WHERE id = %(id)s", **node)
    assert reasons(own_api, batch) == ["no_node"] * 3
    own_api.rows("UPDATE nodes SET cordoned_at = NULL WHERE id = %(id)s", **node)
    own_api.rows("UPDATE worker_sessions SET draining = true WHERE node_id = %(id)s", **node)
    assert reasons(own_api, batch) == ["no_node"] * 3


def test_a_reason_that_was_stored_stays_while_a_node_could_take_the_trial(own_api):
    batch = submit(own_api.client)["id"]
    own_api.world.session()
    own_api.rows("UPDATE trials SET state_reason = 'never_started' WHERE tenant_id = %(me)s")
    assert reasons(own_api, batch) == ["never_started"]


def test_the_batch_counts_by_state_and_outcome(own_api, graded):
    counts = own_api.client.get(f"/v1/batches/{graded['batch']}").json()["trials"]
    assert counts == {"total": 2, "by_state": {"finished": 1, "queued": 1}, "by_outcome": {"failed": 1}}
    job = own_api.client.get(f"/v1/batches/{graded['batch']}/jobs").json()["items"][0]
    assert job["trials"] == counts


def test_the_report_comes_in_three_forms(own_api, graded):
    path = f"/v1/batches/{graded['batch']}/report"
    report = own_api.client.get(path)
    assert report.headers["content-type"] == "application/json"
    assert (report.json()["complete"], report.json()["trials"]) == (False, 2)

    lines = own_api.client.get(f"{path}?format=jsonl").text.splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["failed", None]

    junit = own_api.client.get(f"{path}?format=junit")
    assert "xml" in junit.headers["content-type"]
    assert len(ET.fromstring(junit.content).findall(".//testcase")) == 2
    assert own_api.client.get(f"{path}?format=pdf").status_code == 422


def test_artifacts_are_those_of_the_last_attempt_that_kept_any(own_api, graded):
    names = ["/logs/a.txt", '/logs/ü "x"\t;.txt', "/logs/<b>.html"]
    store = BlobStore(own_api.settings.home_path / "blobs")
    for fence, paths in ((0, ["/logs/old"]), (1, names)):
        for path in paths:
            blob = store.put([path.encode()], max_bytes=100)
            own_api.rows(
                "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
                " VALUES (%(t)s, %(f)s, %(p)s, %(me)s, %(d)s, %(n)s)",
                t=graded["trial"],
                f=fence,
                p=path,
                d=blob.digest,
                n=blob.size_bytes,
            )
    path = f"/v1/trials/{graded['trial']}/artifacts"
    items = own_api.client.get(path).json()["items"]
    assert sorted(item["path"] for item in items) == sorted(names)
    for item in items:
        response = own_api.client.get(
            own_api.client.base_url.join(path + "/x").copy_with(raw_path=_raw(path, item["path"]))
        )
        assert response.content == item["path"].encode()
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert response.headers["x-content-type-options"] == "nosniff"
    assert own_api.client.get(f"{path}/logs/old").status_code == 404
    assert own_api.client.get(f"{path}/..%2F..%2Fetc%2Fpasswd").status_code == 404
    assert own_api.client.get(f"{path}/a%00b").status_code == 422


def _raw(prefix: str, path: str) -> bytes:
    from urllib.parse import quote  # noqa: PLC0415

    return (prefix + quote(path)).encode()


def test_artifact_pages_are_in_byte_order(own_api, graded):
    for number in range(7):
        own_api.rows(
            "INSERT INTO artifacts (trial_id, fence, path, tenant_id, digest, size_bytes)"
            " VALUES (%(t)s, 1, %(p)s, %(me)s, 'x', 1)",
            t=graded["trial"],
            p=f"/{'Aaé'[number % 3]}{number}",
        )
    path = f"/v1/trials/{graded['trial']}/artifacts?limit=3"
    seen, cursor = [], None
    while True:
        page = own_api.client.get(path if cursor is None else f"{path}&cursor={cursor}").json()
        seen += [item["path"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(seen, key=str.encode)
    assert len(seen) == 7
