"""Live sandboxes on a node, over the wire: every state, every wish in it, and what nobody asked for."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest

from core.errors import (
    DaemonError,
    ImageStoreFullError,
    NodeDiskFullError,
    NotSupportedError,
    RegistryAuthError,
    RegistryUnreachableError,
    SandmillError,
    SpecInvalidError,
    VolumeMissingError,
)
from services.reaping import Reaper
from services.session_sweeping import SessionSweeper
from tests.integration.api.conftest import ApiWorld, make_settings, open_api
from tests.support.queue import Seat
from tests.support.session_node import GatedRuntime, LiveNode, live_node, until
from tests.support.statements import noting_statements

pytestmark = pytest.mark.timeout(120)

LIMITS = {"cpu": "500m", "memory": "128Mi"}


def body(**changes) -> dict:
    return {
        "image": {"uri": "fake"},
        "timeout": 600,
        "resourceLimits": LIMITS,
        "entrypoint": ["tail", "-f", "/dev/null"],
        **changes,
    }


@pytest.fixture
def api(database_url, redis_url, tmp_path) -> Iterator[ApiWorld]:
    settings = make_settings(database_url, redis_url, tmp_path / "api", sandbox_create_wait_seconds=2.0)
    with open_api(settings) as running, running.new_tenant() as opened:
        yield opened


@pytest.fixture
def runtime() -> GatedRuntime:
    return GatedRuntime()


@pytest.fixture
def node(api, runtime, database_url, redis_url, tmp_path) -> Iterator[LiveNode]:
    make = partial(make_settings, database_url, redis_url, runtimes=("fake",))
    with live_node(api.world, make, tmp_path / "home", runtime) as running:
        yield running
    assert api.rows("SELECT name FROM sandboxes WHERE state <> 'removed'") == []


def create(api: ApiWorld, **changes) -> dict:
    response = api.client.post("/v1/sandboxes", json=body(**changes))
    assert response.status_code == 202, response.text
    return response.json()


def get(api: ApiWorld, sandbox_id: str) -> httpx.Response:
    return api.client.get(f"/v1/sandboxes/{sandbox_id}")


def state_of(api: ApiWorld, sandbox_id: str) -> str:
    return get(api, sandbox_id).json()["status"]["state"]


def record(api: ApiWorld, sandbox_id: str) -> dict:
    response = api.client.get(f"/v1/sandboxes/{sandbox_id}/record")
    assert response.status_code == 200, response.text
    return response.json()


def holds_nothing(api: ApiWorld) -> bool:
    rows = api.rows(
        "SELECT 1 FROM attempts WHERE tenant_id = %(me)s"
        " AND state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')"
    )
    return not rows


def test_create_answers_running_and_says_so_afterwards(api, node):
    made = create(api, metadata={"a": "b"})
    assert made["status"]["state"] == "Running"
    assert made["status"]["reason"] == "CONTAINER_RUNNING"
    assert get(api, made["id"]).json()["status"]["state"] == "Running"
    assert node.events(made["id"]) == ["SANDBOX_ACCEPTED", "CONTAINER_RUNNING"]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("missing", "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
        ("broken", "DOCKER::SANDBOX_START_FAILED"),
        ("slow-start", "SANDBOX_START_TIMEOUT"),
    ],
)
def test_start_that_fails_says_why_and_holds_nothing(api, node, image, reason):
    made = create(api, image={"uri": image})
    assert made["status"]["state"] == "Failed"
    assert made["status"]["reason"] == reason
    assert len(made["status"]["message"]) > 10
    until(lambda: holds_nothing(api))
    refusal = api.client.get(f"/v1/sandboxes/{made['id']}/endpoints/44772")
    assert refusal.status_code == 500
    assert refusal.json()["code"].startswith("DOCKER::SANDBOX_")
    assert made["status"]["message"] in refusal.json()["message"]
    # It stays to be looked at until somebody deletes it.
    assert get(api, made["id"]).status_code == 200
    assert api.client.delete(f"/v1/sandboxes/{made['id']}").status_code == 204
    assert get(api, made["id"]).status_code == 404


@pytest.mark.parametrize(
    ("blamed", "code", "told"),
    [
        ((VolumeMissingError, "claim"), "VOLUME::PVC_NOT_FOUND", "volumes[1].pvc.claimName: it is not there"),
        (
            (SpecInvalidError, "claim"),
            "SANDBOX::INVALID_PARAMETER",
            "volumes[1].pvc.claimName: it is not there",
        ),
        ((SpecInvalidError, "sub_path"), "VOLUME::INVALID_SUB_PATH", "volumes[1].subPath: it is not there"),
    ],
)
def test_volume_that_no_node_can_give_is_the_requests_fault(api, node, blamed, code, told):
    """B-010: as the refusal of the create would have been, by the field and the names of the request."""
    error, part = blamed
    field = f"volumes[data].{part}"
    node.runtime.fails["create"] = error(f"{field}: it is not there", field=field)
    names = ("first", "data")
    made = create(api, volumes=[{"name": n, "mountPath": f"/{n}", "pvc": {"claimName": n}} for n in names])
    status = made["status"]
    assert (status["state"], status["reason"], status["message"]) == ("Failed", code, told)
    refusal = api.client.get(f"/v1/sandboxes/{made['id']}/endpoints/44772")
    assert (refusal.status_code, refusal.json()["code"]) == (400, code)
    assert told in refusal.json()["message"]
    assert node.events(made["id"]) == ["SANDBOX_ACCEPTED", code]


def test_pause_and_resume(api, node, runtime):
    made = create(api)
    path = f"/v1/sandboxes/{made['id']}"
    paused = api.client.post(f"{path}/pause")
    assert (paused.status_code, paused.content) == (202, b"")
    assert state_of(api, made["id"]) == "Paused"
    assert get(api, made["id"]).json()["status"]["reason"] == "CONTAINER_PAUSED"
    again = api.client.post(f"{path}/pause")
    assert (again.status_code, again.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")
    assert api.client.post(f"{path}/resume").status_code == 202
    assert state_of(api, made["id"]) == "Running"
    again = api.client.post(f"{path}/resume")
    assert (again.status_code, again.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_PAUSED")
    assert runtime.calls.count("pause") == runtime.calls.count("resume") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DaemonError("the engine is out of order"), (500, "DOCKER::SANDBOX_PAUSE_FAILED")),
        (NotSupportedError("this runtime cannot"), (501, "SANDBOX::API_NOT_SUPPORTED")),
    ],
)
def test_pause_that_fails_is_told_and_leaves_it_running(api, node, runtime, error, told):
    made = create(api)
    runtime.fails["pause"] = error
    response = api.client.post(f"/v1/sandboxes/{made['id']}/pause")
    assert (response.status_code, response.json()["code"]) == told
    assert error.message in response.json()["message"]
    assert state_of(api, made["id"]) == "Running"
    runtime.fails.clear()
    assert api.client.post(f"/v1/sandboxes/{made['id']}/pause").status_code == 202


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RegistryAuthError("the registry refuses: name a user who may pull"),
            "DOCKER::SANDBOX_IMAGE_PULL_FAILED",
        ),
        (RegistryUnreachableError("the registry is not reached"), "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
        (ImageStoreFullError(free_bytes=1 << 20, needed_bytes=2 << 20), "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
        (NodeDiskFullError("the disk of the node is full"), "DOCKER::SANDBOX_START_FAILED"),
        (DaemonError("the engine does not answer"), "DOCKER::SANDBOX_START_FAILED"),
    ],
    ids=lambda value: value.code if isinstance(value, SandmillError) else "",
)
def test_start_that_the_node_cannot_do_is_told_in_its_words(api, node, runtime, error, reason):
    """Pull denied, registry away, disk full, engine away: said once, not tried for ever, and nothing is held."""
    runtime.fails["create"] = error
    made = create(api)
    until(lambda: state_of(api, made["id"]) == "Failed")
    status = get(api, made["id"]).json()["status"]
    assert (status["reason"], status["message"]) == (reason, error.message)
    until(lambda: holds_nothing(api))
    assert runtime.calls.count("create") == 1
    runtime.fails.clear()
    again = create(api)
    until(lambda: state_of(api, again["id"]) == "Running")


def test_resume_that_fails_is_told_and_leaves_it_paused(api, node, runtime):
    made = create(api)
    path = f"/v1/sandboxes/{made['id']}"
    assert api.client.post(f"{path}/pause").status_code == 202
    runtime.fails["resume"] = DaemonError("the engine is out of order")
    response = api.client.post(f"{path}/resume")
    assert (response.status_code, response.json()["code"]) == (500, "DOCKER::SANDBOX_RESUME_FAILED")
    assert "the engine is out of order" in response.json()["message"]
    assert state_of(api, made["id"]) == "Paused"
    runtime.fails.clear()
    assert api.client.post(f"{path}/resume").status_code == 202
    assert state_of(api, made["id"]) == "Running"


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
def test_delete_of_what_will_not_go_is_stopping_until_it_is_gone(api, node, runtime, monkeypatch, is_paused):
    monkeypatch.setattr("workers.session_ends._RETRY_SECONDS", 0.5)
    path = f"/v1/sandboxes/{create(api)['id']}"
    if is_paused:
        assert api.client.post(f"{path}/pause").status_code == 202
    runtime.fails["remove"] = DaemonError("the engine is away")
    assert api.client.delete(path).status_code == 204
    until(lambda: runtime.calls.count("remove") >= 4)  # three tries at once, then one now and then
    status = api.client.get(path).json()["status"]
    assert status["state"] == "Stopping"
    assert status["message"] == "the runtime fake of its node does not remove it now: tried until it does"
    # It is there, and so it counts; what is asked again changes nothing.
    assert not holds_nothing(api)
    assert len(runtime.list()) == 1
    assert api.client.delete(path).status_code == 204
    assert api.client.get(path).json()["status"]["state"] == "Stopping"
    runtime.fails.clear()
    until(lambda: api.client.get(path).status_code == 404)
    status = api.client.get(f"{path}/record").json()["status"]
    assert (status["state"], status["reason"]) == ("Terminated", "SANDBOX_DELETED")
    assert "message" not in status
    until(lambda: holds_nothing(api))
    assert runtime.list() == []


def test_what_died_and_will_not_go_is_failed_at_once(api, node, runtime):
    path = f"/v1/sandboxes/{create(api)['id']}"
    runtime.fails["remove"] = DaemonError("the engine is away")
    runtime.kill()
    until(lambda: api.client.get(path).json()["status"]["state"] == "Failed")
    runtime.fails.clear()
    node.worker._remove_leftovers()


def test_start_that_nobody_foresaw_to_fail_blames_us_and_holds_nothing(api, node, runtime):
    runtime.fails["create"] = LookupError("the unforeseen")
    made = create(api)
    until(lambda: state_of(api, made["id"]) == "Failed")
    status = get(api, made["id"]).json()["status"]
    assert status["reason"] == "SANDBOX::INTERNAL_ERROR"
    assert status["message"]
    until(lambda: holds_nothing(api))
    # Nobody can know how far it got: the node looks, and writes down that there is nothing.
    assert api.rows("SELECT state FROM sandboxes WHERE tenant_id = %(me)s") == [{"state": "creating"}]
    node.worker._remove_leftovers()
    assert api.rows("SELECT state FROM sandboxes WHERE tenant_id = %(me)s") == [{"state": "removed"}]


def test_endpoint_where_no_ingress_runs_is_told(api, node):
    api.world.execute("UPDATE nodes SET ingress_url = NULL, ingress_address = NULL")
    made = create(api)
    response = api.client.get(f"/v1/sandboxes/{made['id']}/endpoints/8080")
    answer = (response.status_code, response.json()["code"])
    assert answer == (500, "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE")
    assert "sandmill-server ingress" in response.json()["message"]


def test_state_follows_a_hand_on_the_node_itself(api, node, runtime):
    made = create(api)
    (handle,) = runtime.list()
    runtime.pause(handle)
    until(lambda: state_of(api, made["id"]) == "Paused")
    runtime.resume(handle)
    until(lambda: state_of(api, made["id"]) == "Running")


def test_death_from_outside_is_a_failure_with_a_reason(api, node, runtime):
    made = create(api)
    runtime.kill()
    until(lambda: state_of(api, made["id"]) == "Failed", 10)
    status = get(api, made["id"]).json()["status"]
    assert status["reason"] == "CONTAINER_EXITED_ERROR"
    assert "ended" in status["message"]
    assert runtime.list() == []
    assert holds_nothing(api)
    # For a moment after its start it is told as it was then.
    endpoint = f"/v1/sandboxes/{made['id']}/endpoints/8080"
    until(lambda: api.client.get(endpoint).status_code != 200, 10)
    gone = api.client.get(endpoint)
    assert (gone.status_code, gone.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")
    seen = record(api, made["id"])
    assert seen["endedBy"] == f"worker:{node.worker.node_id}"
    assert seen["events"][-1]["reason"] == "CONTAINER_EXITED_ERROR"


def test_delete_of_a_queued_one_needs_no_node(api):
    made = create(api, timeout=None)
    assert made["status"]["state"] == "Pending"
    assert "expiresAt" not in made
    path = f"/v1/sandboxes/{made['id']}"
    assert api.client.delete(path).status_code == 204
    assert get(api, made["id"]).status_code == 404
    assert api.client.get("/v1/sandboxes").json()["items"] == []
    assert api.client.delete(path).status_code == 204
    seen = record(api, made["id"])
    assert (seen["status"]["state"], seen["endReason"]) == ("Terminated", "SANDBOX_DELETED")
    assert seen["endedBy"].startswith("key:")
    assert [event["reason"] for event in seen["events"]] == [
        "SANDBOX_ACCEPTED",
        "SANDBOX_DELETED",
        "SANDBOX_DELETED",
    ]


def test_delete_during_a_start_that_takes_minutes_is_obeyed_at_once(api, node, runtime):
    """The start cannot be called off, so what comes of it is taken away, and nobody waits for that."""
    made = create(api, image={"uri": "slow"})
    assert made["status"]["state"] == "Pending"
    assert runtime.begun.wait(10)
    assert api.client.delete(f"/v1/sandboxes/{made['id']}").status_code == 204
    until(lambda: get(api, made["id"]).status_code == 404, 5)
    assert holds_nothing(api)
    assert record(api, made["id"])["endReason"] == "SANDBOX_DELETED"
    # Others start meanwhile, and the late one goes without a trace.
    assert create(api)["status"]["state"] == "Running"
    runtime.gate.set()
    until(lambda: len(runtime.list()) == 1 and runtime.calls.count("create") == 2)
    until(lambda: len(api.rows("SELECT 1 FROM sandboxes WHERE state <> 'removed'")) == 1)
    assert node.events(made["id"]) == ["SANDBOX_ACCEPTED", "SANDBOX_DELETED", "SANDBOX_DELETED"]


@pytest.mark.parametrize("before", ["Running", "Paused"])
def test_delete_of_a_live_one(api, node, runtime, before):
    made = create(api)
    if before == "Paused":
        api.client.post(f"/v1/sandboxes/{made['id']}/pause")
    assert api.client.delete(f"/v1/sandboxes/{made['id']}").status_code == 204
    assert get(api, made["id"]).status_code == 404
    assert runtime.list() == []
    assert holds_nothing(api)
    assert api.client.delete(f"/v1/sandboxes/{made['id']}").status_code == 204
    trial = api.world.trial(made["id"])
    assert (trial["state"], trial["outcome"]) == ("finished", "cancelled")
    # What it used is known although it was ended from outside.
    assert api.world.attempt(made["id"], 1)["usage"]["cpu_seconds"] == 0.0


def test_what_it_used_tells_how_long_it_lived(api, node, runtime):
    sandbox = create(api)["id"]
    lived = datetime.now(UTC)
    until(lambda: datetime.now(UTC) - lived > timedelta(seconds=0.5))
    assert api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    (row,) = api.rows(
        "SELECT (usage ->> 'wall_seconds')::float8 AS told,"
        " extract(epoch FROM finished_at - claimed_at)::float8 AS whole FROM attempts WHERE trial_id = %(id)s",
        id=sandbox,
    )
    assert 0.5 <= row["told"] <= row["whole"] + 0.1


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_delete_while_a_wish_is_being_obeyed(api, node, runtime, verb, monkeypatch):
    made = create(api)
    path = f"/v1/sandboxes/{made['id']}"
    if verb == "resume":
        api.client.post(f"{path}/pause")
    original = getattr(GatedRuntime, verb)

    def slowly(self, handle):
        self.begun.set()
        assert self.gate.wait(30)
        original(self, handle)

    monkeypatch.setattr(GatedRuntime, verb, slowly)
    assert api.client.post(f"{path}/{verb}").status_code == 202  # it waits a while only
    assert runtime.begun.is_set()
    passing = {"pause": "Pausing", "resume": "Resuming"}[verb]
    assert state_of(api, made["id"]) == passing
    assert api.client.delete(path).status_code == 204
    assert state_of(api, made["id"]) == "Stopping"
    late = api.client.post(f"{path}/{verb}")
    assert late.status_code == 409
    renewed = api.client.post(
        f"{path}/renew-expiration", json={"expiresAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    )
    assert (renewed.status_code, renewed.json()["code"]) == (409, "DOCKER::SANDBOX_NOT_RUNNING")
    runtime.gate.set()
    until(lambda: get(api, made["id"]).status_code == 404)
    assert record(api, made["id"])["status"]["state"] == "Terminated"


def expire(api: ApiWorld, sandbox_id: str) -> None:
    api.world.execute(
        "UPDATE sandbox_sessions SET expires_at = clock_timestamp() - interval '1 s' WHERE trial_id = %(id)s",
        id=sandbox_id,
    )


def test_expired_one_is_ended_by_the_scheduler(api, node, runtime):
    made = create(api)
    api.client.post(f"/v1/sandboxes/{made['id']}/pause")
    expire(api, made["id"])
    until(lambda: get(api, made["id"]).status_code == 404)
    seen = record(api, made["id"])
    assert (seen["status"]["state"], seen["endReason"], seen["endedBy"]) == (
        "Terminated",
        "SANDBOX_EXPIRED",
        "scheduler",
    )
    assert runtime.list() == []


def test_expired_one_is_ended_by_its_node_when_no_scheduler_is_there(api, node, runtime):
    made = create(api)
    node.scheduler.stop()
    api.world.execute(
        "UPDATE sandbox_sessions SET expires_at = clock_timestamp() - interval '6 s' WHERE trial_id = %(id)s",
        id=made["id"],
    )
    until(lambda: get(api, made["id"]).status_code == 404)
    seen = record(api, made["id"])
    assert (seen["endReason"], seen["endedBy"]) == ("SANDBOX_EXPIRED", f"worker:{node.worker.node_id}")
    assert runtime.list() == []


def test_expired_one_that_waits_is_ended(api):
    """No node at all: the scheduler's sweep alone ends it."""
    made = create(api)
    expire(api, made["id"])
    told = []
    SessionSweeper(api.engine, tell_nodes=lambda _: None, tell=told.append).run()
    assert get(api, made["id"]).status_code == 404
    assert [str(each) for each in told] == [made["id"]]
    assert record(api, made["id"])["endReason"] == "SANDBOX_EXPIRED"


def test_one_that_no_node_takes_fails_in_words(api):
    made = create(api, extensions={"sandmill.runtime": "docker"})
    api.world.execute("UPDATE trials SET queue_deadline = clock_timestamp() - interval '1 s'")
    Reaper(api.engine, lease_grace_seconds=5.0).sweep()
    SessionSweeper(api.engine, tell_nodes=lambda _: None, tell=lambda _: None).run()
    status = get(api, made["id"]).json()["status"]
    assert (status["state"], status["reason"]) == ("Failed", "SANDBOX_NOT_SCHEDULED")
    assert status["message"] == "not started in time: no node takes work now"


def let_time_run_out(api: ApiWorld, sandbox_id: str) -> None:
    sql = "UPDATE trials SET queue_deadline = clock_timestamp() - interval '1 s' WHERE id = %(id)s"
    api.world.execute(sql, id=sandbox_id)
    until(lambda: state_of(api, sandbox_id) == "Failed")


def test_a_full_quota_is_told_while_it_keeps_one_waiting_and_when_that_was_too_long(api, node):
    """B-011: it is not the nodes that are short, so nobody is sent to look for some."""
    api.world.execute("UPDATE tenants SET max_running = 1 WHERE id = %(id)s", id=api.tenant_id)
    assert create(api)["status"]["state"] == "Running"
    cause = "your tenant's quota max_running is full: 1 of 1 run"
    made = create(api)
    path = f"/v1/sandboxes/{made['id']}"
    listed = api.client.get("/v1/sandboxes", params={"state": "Pending"}).json()["items"]
    for status in (made["status"], get(api, made["id"]).json()["status"], listed[0]["status"],
                   record(api, made["id"])["status"]):  # fmt: skip
        assert (status["state"], status["message"]) == ("Pending", f"waits: {cause}")
    for kind in ("summary", "inspect"):
        assert f"message: waits: {cause}" in api.client.get(f"{path}/diagnostics/{kind}").text
    let_time_run_out(api, made["id"])
    status = get(api, made["id"]).json()["status"]
    assert (status["reason"], status["message"]) == ("SANDBOX_NOT_SCHEDULED", f"not started in time: {cause}")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("max_cpu_millicores", 30, "max_cpu_millicores has 30 left, and this one takes 50"),
        ("max_memory_bytes", 1 << 20, "max_memory_bytes has 1048576 left, and this one takes 16777216"),
        ("budget_cpu_seconds", 7, "budget_cpu_seconds has 7 left, and this one takes 30"),
    ],
)
def test_each_quota_that_keeps_one_waiting_is_told_by_its_name(api, node, column, value, words):
    changes = f"{column} = %(n)s" + (", budget_period_seconds = 3600" if column.startswith("budget") else "")
    api.world.execute(f"UPDATE tenants SET {changes} WHERE id = %(id)s", n=value, id=api.tenant_id)
    assert create(api)["status"]["message"] == f"waits: your tenant's quota {words}"


def test_paused_tenant_is_told(api, node):
    api.world.execute("UPDATE tenants SET paused_at = clock_timestamp() WHERE id = %(id)s", id=api.tenant_id)
    assert create(api)["status"]["message"] == "waits: your tenant is paused"
    api.world.execute("UPDATE tenants SET paused_at = NULL WHERE id = %(id)s", id=api.tenant_id)


def test_paused_queue_and_nodes_that_are_away_are_told(api, node):
    api.world.execute("UPDATE queues SET paused_at = clock_timestamp() WHERE name = 'default'")
    made = create(api)
    assert made["status"]["message"] == "waits: the queue default is paused"
    api.world.execute("UPDATE nodes SET cordoned_at = clock_timestamp()")
    assert get(api, made["id"]).json()["status"]["message"] == "waits: no node takes work now"


def test_nodes_without_room_are_told(api, node):
    api.world.execute("UPDATE nodes SET cpu_millicores = 60")
    assert create(api)["status"]["state"] == "Running"
    made = create(api)
    cause = "nodes that could take it (there are 1) have no room, or others are before it"
    assert made["status"]["message"] == f"waits: {cause}"
    let_time_run_out(api, made["id"])
    assert get(api, made["id"]).json()["status"]["message"] == f"not started in time: {cause}"


def test_create_that_runs_asks_for_no_reason_to_wait(api, node):
    with noting_statements() as statements:
        assert create(api)["status"]["state"] == "Running"
    # Once, or again after a while in which nothing was heard.
    assert [sql for sql in statements if "n.ingress_url, n.ingress_address" in sql]
    assert not [sql for sql in statements if "AS running_left" in sql]


def test_renewed_one_lives_on_and_a_shorter_time_counts_too(api, node):
    made = create(api)
    path = f"/v1/sandboxes/{made['id']}/renew-expiration"
    later = datetime.now(UTC) + timedelta(hours=2)
    renewed = api.client.post(path, json={"expiresAt": later.isoformat()})
    assert renewed.status_code == 200
    assert datetime.fromisoformat(renewed.json()["expiresAt"]) == later
    assert datetime.fromisoformat(get(api, made["id"]).json()["expiresAt"]) == later
    sooner = datetime.now(UTC) + timedelta(seconds=1.5)
    assert api.client.post(path, json={"expiresAt": sooner.isoformat()}).status_code == 200
    until(lambda: get(api, made["id"]).status_code == 404)


def test_drained_worker_ends_what_runs_and_gives_back_what_starts(api, node, runtime):
    running = create(api)
    starting = create(api, image={"uri": "slow"})
    assert runtime.begun.wait(10)
    node.scheduler.stop()
    node.worker.drain()
    until(lambda: state_of(api, running["id"]) == "Failed")
    assert get(api, running["id"]).json()["status"]["reason"] == "NODE_STOPPED"
    until(lambda: api.world.trial(starting["id"])["state"] == "retry_wait")
    assert state_of(api, starting["id"]) == "Pending"
    assert "NODE_STOPPED" in node.events(starting["id"])
    assert api.client.delete(f"/v1/sandboxes/{starting['id']}").status_code == 204
    assert get(api, starting["id"]).status_code == 404


def test_node_that_is_drained_by_an_operator_ends_its_sandboxes(api, node, runtime):
    made = create(api)
    api.world.execute("UPDATE attempts SET desired = 'preempt' WHERE state = 'running'")
    until(lambda: state_of(api, made["id"]) == "Failed")
    assert get(api, made["id"]).json()["status"]["reason"] == "NODE_DRAINED"
    assert runtime.list() == []


def test_lost_lease_ends_the_sandbox_and_the_scheduler_tells(api, node, runtime):
    made = create(api)
    api.world.execute(
        "UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = 'test' WHERE ended_at IS NULL"
    )
    until(lambda: state_of(api, made["id"]) == "Failed")
    assert get(api, made["id"]).json()["status"]["reason"] == "NODE_LOST"
    until(lambda: runtime.list() == [])
    # The next session of the same worker takes new ones.
    until(lambda: create(api)["status"]["state"] == "Running")


def test_lost_start_is_tried_again(api, node, runtime):
    made = create(api, image={"uri": "slow"})
    assert runtime.begun.wait(10)
    api.world.execute(
        "UPDATE worker_sessions SET ended_at = clock_timestamp(), end_reason = 'test' WHERE ended_at IS NULL"
    )
    until(lambda: api.world.trial(made["id"])["fence"] == 2)
    runtime.gate.set()
    until(lambda: state_of(api, made["id"]) == "Running")
    until(lambda: len(runtime.list()) == 1)
    assert api.world.trial(made["id"])["infra_losses"] == 1


def test_claim_without_anybody_is_given_back_and_started(api, node):
    """The reply to a claim was lost: the heartbeat sees that nobody runs it, and it is started after all."""
    node.scheduler.stop()
    made = create(api)
    assert made["status"]["state"] == "Pending"
    world = node.world
    world.dispatcher.tick()
    (bell,) = world.bells.rung
    assert Seat(world, node.worker.node_id, node.worker._lease.session_id).claim(bell) is not None
    until(lambda: world.trial(made["id"])["state"] in {"queued", "retry_wait"})

    def is_rung_again() -> bool:
        node.scheduler._reaper.sweep()
        world.dispatcher.tick()
        for again in world.bells.rung[1:]:
            node.ring(again)
        return len(world.bells.rung) > 1

    until(is_rung_again)
    until(lambda: state_of(api, made["id"]) == "Running")


def test_quota_counts_live_sandboxes_and_comes_back(api, node):
    api.rows("UPDATE tenants SET max_running = 2 WHERE id = %(me)s RETURNING id")
    first, second = create(api), create(api)
    third = create(api)
    assert third["status"]["state"] == "Pending"
    assert api.client.delete(f"/v1/sandboxes/{first['id']}").status_code == 204
    until(lambda: state_of(api, third["id"]) == "Running")
    for made in (second, third):
        api.client.delete(f"/v1/sandboxes/{made['id']}")
    assert holds_nothing(api)


def test_thread_of_a_node_is_free_while_sandboxes_live(api, node):
    """More live at once than the node has slots: none of them holds one."""
    count = node.settings.worker_slots + 4
    made = [create(api)["id"] for _ in range(count)]
    until(lambda: all(state_of(api, each) == "Running" for each in made))
    assert len(node.worker._sessions) == count
    for each in made:
        assert api.client.delete(f"/v1/sandboxes/{each}").status_code == 204
    assert len(node.worker._sessions) == 0
