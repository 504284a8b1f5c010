"""Pools of real local sandboxes in a running stack, while what holds them is killed."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtimes.bundle import ensure_bundle
from runtimes.local.records import Records
from runtimes.registry import local_state
from tests.support.running_stack import RunningStack, running_stack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="the pool's sandboxes are forks of root's zygote"),
]

NAME = "py"
WAIT_SECONDS = 60.0


class Pooled:
    """A stack with a pool of two."""

    def __init__(self, stack: RunningStack, name: str = NAME) -> None:
        self.stack, self.name = stack, name
        headers = {"OPEN-SANDBOX-API-KEY": stack.api_key}
        self.client = httpx.Client(base_url=stack.api_url, headers=headers, timeout=60)

    def status(self) -> dict[str, Any]:
        answer = self.client.get(f"/v1/pools/{self.name}")
        return answer.json()["status"] if answer.status_code == 200 else {}

    def wait_for(self, **numbers: int) -> None:
        wait(lambda: numbers.items() <= self.status().items(), self.status)

    def create(self, **body: Any) -> dict[str, Any]:
        answer = self.client.post(
            "/v1/sandboxes", json={"extensions": {"poolRef": NAME}, "timeout": 600, **body}
        )
        assert answer.status_code == 202, answer.text
        return answer.json()

    def run(self, sandbox_id: str, command: str) -> str:
        """Run in a sandbox, by the way clients do; gives the whole stream."""
        place = self.client.get(f"/v1/sandboxes/{sandbox_id}/endpoints/44772").json()
        answer = httpx.post(
            f"http://{place['endpoint']}/command",
            json={"command": command},
            headers=place["headers"],
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        return answer.text

    def remove(self, sandbox_id: str) -> None:
        self.client.delete(f"/v1/sandboxes/{sandbox_id}").raise_for_status()

    def members(self) -> dict[str, int]:
        """First processes of all local sandboxes, by name."""
        records = Records(local_state(self.stack.home / "runtimes") / "sandboxes")
        return {record.name: record.init.pid for record in records.all() if record.init is not None}


def wait(is_so: Callable[[], Any], tell: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    home: Path = tmp_path_factory.mktemp("pools") / "home"
    # Else the worker builds it while `up` waits for its first word.
    ensure_bundle(home / "runtimes" / "bundles")
    with running_stack(home, {"SANDMILL_LOG_LEVEL": "warning"}) as running:
        yield running


@pytest.fixture
def pooled(stack: RunningStack) -> Iterator[Pooled]:
    pooled = Pooled(stack)
    size = {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 6}
    body = {"name": NAME, "template": {"image": {"uri": "host"}}, "capacitySpec": size}
    assert pooled.client.post("/v1/pools", json=body).status_code == 201
    pooled.wait_for(available=2)
    yield pooled
    pooled.client.delete(f"/v1/pools/{NAME}")
    for sandbox in pooled.client.get("/v1/sandboxes?pageSize=200").json()["items"]:
        pooled.remove(sandbox["id"])
    wait(lambda: not pooled.members(), pooled.members)
    pooled.client.close()


def test_a_member_runs_commands_and_what_is_in_it_is_met_by_nobody_again(pooled: Pooled):
    for _ in range(4):
        pooled.wait_for(available=2, allocated=0)
        sandbox = pooled.create()
        assert sandbox["status"]["state"] == "Running"
        marker = "test -e /tmp/marker && echo met-a-marker; touch /tmp/marker; echo clean-so-far"
        told = pooled.run(sandbox["id"], marker)
        assert "clean-so-far" in told
        assert "met-a-marker" not in told
        pooled.remove(sandbox["id"])


def test_members_outlive_a_killed_worker_and_those_in_use_do_too(pooled: Pooled):
    used = pooled.create()["id"]
    pooled.wait_for(available=2, allocated=1)
    before = pooled.members()
    pooled.stack.kill("workers")
    # The scheduler fills nothing up, since nothing is missing; the next worker goes on with all of them.
    wait(lambda: pooled.create(timeout=60)["status"]["state"] == "Running", pooled.status)
    pooled.wait_for(available=2)
    assert before.items() <= pooled.members().items()
    assert "still-here" in pooled.run(used, "echo still-here")


def test_a_member_that_was_killed_is_never_what_a_create_gets(pooled: Pooled):
    names = pooled.members()
    for pid in names.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    sandbox = pooled.create()  # at once: nobody may have noticed yet
    assert f"sm-{sandbox['id']}-1" not in names
    wait(
        lambda: pooled.client.get(f"/v1/sandboxes/{sandbox['id']}").json()["status"]["state"] == "Running",
        pooled.status,
    )
    assert "alive" in pooled.run(sandbox["id"], "echo alive")
    pooled.wait_for(available=2, allocated=1, total=3)


def test_a_sandbox_in_use_lives_on_without_its_pool(pooled: Pooled):
    used = pooled.create()["id"]
    assert pooled.client.delete(f"/v1/pools/{NAME}").status_code == 204
    wait(lambda: list(pooled.members()) == [f"sm-{used}-1"], pooled.members)
    assert "lives-on" in pooled.run(used, "echo lives-on")


def test_a_killed_api_loses_no_member(pooled: Pooled):
    headers = {"Idempotency-Key": "the-same"}
    body = {"extensions": {"poolRef": NAME}, "timeout": 600}
    first = pooled.client.post("/v1/sandboxes", json=body, headers=headers).json()["id"]
    pooled.stack.kill("api.app")
    again: list[str] = []

    def ask() -> bool:
        with contextlib.suppress(httpx.TransportError):
            again.append(pooled.client.post("/v1/sandboxes", json=body, headers=headers).json()["id"])
        return bool(again)

    wait(ask, lambda: again)
    assert again == [first]
    pooled.wait_for(available=2, allocated=1)


JOBS = "for-jobs"


@pytest.fixture
def graders(stack: RunningStack) -> Iterator[Pooled]:
    """A pool of two for jobs, beside none for creates."""
    pooled = Pooled(stack, JOBS)
    size = {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 4}
    template = {"image": {"uri": "host"}, "extensions": {"sandmill.for": "jobs"}}
    body = {"name": JOBS, "template": template, "capacitySpec": size}
    assert pooled.client.post("/v1/pools", json=body).status_code == 201
    pooled.wait_for(available=2)
    yield pooled
    pooled.client.delete(f"/v1/pools/{JOBS}")
    wait(lambda: not pooled.members(), pooled.members)
    pooled.client.close()


def submit(pooled: Pooled, script: str) -> str:
    """Give the id of the one trial of a job that runs this."""
    job = {"image": "host", "env": {"SECRET": "of-the-job"}, "steps": [{"name": "run", "run": script}]}
    answer = pooled.client.post("/v1/jobs", json=job)
    assert answer.status_code == 202, answer.text
    batch = answer.json()["batch_id"]
    return str(pooled.client.get(f"/v1/batches/{batch}/trials").json()["items"][0]["id"])


def trial(pooled: Pooled, trial_id: str) -> dict[str, Any]:
    return dict(pooled.client.get(f"/v1/trials/{trial_id}").json())


def test_a_job_is_given_a_member_and_goes_on_with_it_when_its_worker_is_killed(graders: Pooled):
    free = set(graders.members())
    script = (
        'test ! -e /tmp/marker && touch /tmp/marker && test "$SECRET$TRIAL_INDEX" = of-the-job0 && sleep 8'
    )
    trial_id = submit(graders, script)
    wait(
        lambda: [each["state"] for each in trial(graders, trial_id)["attempts"]] == ["running"],
        lambda: trial(graders, trial_id),
    )
    graders.wait_for(available=2, allocated=0)
    names = set(graders.members())
    assert free <= names
    assert len(names) == 3
    assert f"sm-{trial_id}-1" not in names
    graders.stack.kill("workers")
    wait(lambda: trial(graders, trial_id)["state"] == "finished", lambda: trial(graders, trial_id))
    ended = trial(graders, trial_id)
    assert (ended["outcome"], ended["attempts_used"]) == ("passed", 1), ended
    wait(lambda: len(graders.members()) == 2, graders.members)
    assert len(free & set(graders.members())) == 1


def test_many_jobs_at_once_get_a_clean_sandbox_each(graders: Pooled):
    script = "test ! -e /tmp/marker && touch /tmp/marker"
    trials = [submit(graders, script) for _ in range(8)]
    wait(
        lambda: all(trial(graders, one)["state"] == "finished" for one in trials),
        lambda: [trial(graders, one)["state"] for one in trials],
    )
    assert {trial(graders, one)["outcome"] for one in trials} == {"passed"}
    graders.wait_for(available=2, total=2)


def test_a_create_is_refused_a_member_that_is_for_jobs(graders: Pooled):
    answer = graders.client.post("/v1/sandboxes", json={"extensions": {"poolRef": JOBS}, "timeout": 60})
    assert answer.status_code == 400
    assert "extensions.poolRef" in answer.json()["message"]
    assert "for jobs" in answer.json()["message"]
    answer = graders.client.post("/v1/sandboxes", json={"extensions": {"poolRef": "*"}, "timeout": 60})
    assert answer.json()["code"] == "KUBERNETES::POOL_NOT_FOUND"
