"""Creates that ask for what no node could give: refused at once, with the field by its name, and nothing is kept."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runtimes.base import Capabilities
from services.node_capabilities import labels_of_capabilities
from services.runtime_offers import PLATFORM_LABEL
from tests.integration.api.conftest import ApiWorld, changed_settings
from tests.support.live_sandboxes import create_body

INVALID = "SANDBOX::INVALID_PARAMETER"
VOLUME = {"name": "v", "mountPath": "/v", "pvc": {"claimName": "c"}}
ON_LOCAL, ON_DOCKER = ({"sandmill.runtime": name} for name in ("local", "docker"))


@pytest.fixture
def api(own_api: ApiWorld) -> Iterator[ApiWorld]:
    """An installation whose creates wait for nobody; tests say what its nodes are."""
    with changed_settings(own_api.app, sandbox_create_wait_seconds=0.0):
        yield own_api


def post(api: ApiWorld, **changes: Any) -> httpx.Response:
    return api.client.post("/v1/sandboxes", json=create_body(**changes))


def refused(api: ApiWorld, field: str, *words: str, code: str = INVALID, **changes: Any) -> None:
    before = api.count("sandbox_sessions")
    response = post(api, **changes)
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer["code"] == code
    assert answer["message"].startswith(f"{field}: ")
    for word in words:
        assert word in answer["message"]
    assert api.count("sandbox_sessions") == before


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"volumes": [VOLUME]}, "volumes", "VOLUME::UNSUPPORTED_BACKEND"),
        ({"resourceLimits": {"cpu": "1", "gpu": "1"}}, "resourceLimits.gpu", INVALID),
        (
            {"extensions": {**ON_LOCAL, "sandmill.oci-runtime": "runsc"}},
            "extensions.sandmill.oci-runtime",
            INVALID,
        ),
    ],
    ids=["volumes", "gpu", "oci-runtime"],
)
def test_what_a_runtime_can_do_nothing_with_is_refused(api, changes, field, code):
    refused(api, field, "the runtime local", code=code, **{"extensions": ON_LOCAL, **changes})
    # The runtime that nobody names is held to the same.
    unnamed = {**changes, "extensions": {**changes.get("extensions", {}), "sandmill.runtime": None}}
    unnamed["extensions"] = {key: value for key, value in unnamed["extensions"].items() if value}
    with changed_settings(api.app, runtime="local"):
        refused(api, field, "the runtime local", code=code, **unnamed)
    # Another runtime has it.
    on_docker = {**changes.get("extensions", {}), **ON_DOCKER}
    assert post(api, **{**changes, "extensions": on_docker}).status_code == 202


def test_runtime_that_is_none_is_refused(api):
    refused(api, "extensions.sandmill.runtime", "local, docker", extensions={"sandmill.runtime": "kvm"})


def test_runtime_that_no_node_offers_is_refused(api):
    assert post(api, extensions=ON_DOCKER).status_code == 202  # before the first node nobody knows
    api.world.session(runtimes=["fake", "local"])
    refused(api, "extensions.sandmill.runtime", "which no node offers", "fake, local", extensions=ON_DOCKER)
    node = api.world.session(runtimes=["docker"])
    # One that is away may be back soon.
    api.world.execute(
        "UPDATE worker_sessions SET ended_at = clock_timestamp() WHERE id = %(id)s", id=node.session_id
    )
    assert post(api, extensions=ON_DOCKER).status_code == 202


def test_more_gpus_than_any_node_has_are_refused(api):
    api.world.session(runtimes=["fake"], gpu=2)
    api.world.session(runtimes=["docker"], gpu=4)
    limits = {"cpu": "1", "gpu": "3"}
    refused(api, "resourceLimits.gpu", "is 3", "more than 2", resourceLimits=limits)
    assert post(api, resourceLimits=limits, extensions=ON_DOCKER).status_code == 202
    assert post(api, resourceLimits={"cpu": "1", "gpu": "2"}).status_code == 202


SIZES = [("cpu", "40", "41", "4100m"), ("memory", "80Gi", "81Gi", "8294Mi")]


@pytest.mark.parametrize(("key", "most", "more", "reserved"), SIZES, ids=["cpu", "memory"])
def test_more_cpu_and_memory_than_the_largest_node_has_are_refused(api, key, most, more, reserved):
    limits = {key: more}
    assert post(api, resourceLimits=limits).status_code == 202  # before the first node nobody knows
    api.world.session(runtimes=["fake"], cpu_millicores=2000, memory_bytes=4 << 30)
    api.world.session(runtimes=["fake", "docker"], cpu_millicores=4000, memory_bytes=8 << 30)
    api.world.session(runtimes=["docker"])
    refused(api, f"resourceLimits.{key}", reserved, "offers fake", resourceLimits=limits)
    # What is reserved counts, by default a tenth.
    assert post(api, resourceLimits={key: most}).status_code == 202
    assert post(api, resourceLimits=limits, extensions=ON_DOCKER).status_code == 202
    with changed_settings(api.app, **{f"sandbox_{key}_request": 0.05}):
        assert post(api, resourceLimits=limits).status_code == 202
    answer = post_pool(api, "p", limits)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(f"template.resourceLimits.{key}: ")
    # While no node takes work, the next may be of any size.
    api.world.execute("UPDATE worker_sessions SET ended_at = clock_timestamp()")
    assert post(api, resourceLimits=limits).status_code == 202


def labels_of(api: ApiWorld, response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 202, response.text
    (row,) = api.rows("SELECT node_labels FROM trials WHERE id = %(id)s", id=response.json()["id"])
    return row["node_labels"]


def test_platform_that_no_node_has_is_refused_and_another_is_placed(api):
    arm, amd = ({"os": "linux", "arch": arch} for arch in ("arm64", "amd64"))
    api.world.session(runtimes=["fake"], labels={PLATFORM_LABEL: "linux/amd64"})
    refused(api, "platform", "linux/arm64", "linux/amd64", platform=arm)
    assert labels_of(api, post(api, platform=amd)) == {PLATFORM_LABEL: "linux/amd64"}
    assert labels_of(api, post(api)) == {}
    # A node of an earlier release does not tell what it is.
    api.world.session(runtimes=["fake"])
    assert labels_of(api, post(api, platform=arm)) == {}


def test_template_of_a_pool_is_held_to_the_same(api):
    limits = {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1}
    template = {"image": {"uri": "host"}, "resourceLimits": {"gpu": "1"}, "extensions": ON_LOCAL}
    body = {"name": "p", "template": template, "capacitySpec": limits}
    answer = api.client.post("/v1/pools", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, INVALID)
    assert answer.json()["message"].startswith("template.resourceLimits.gpu: ")
    assert api.client.get("/v1/pools").json() == {"items": []}


def test_oci_runtime_and_folders_are_held_against_nodes_that_take_work(api):
    gvisor = {**ON_DOCKER, "sandmill.oci-runtime": "runsc"}
    volumes = [{"name": "v", "mountPath": "/v", "host": {"path": "/srv/a"}}]
    field, code = "volumes[0].host.path", "VOLUME::HOST_PATH_NOT_ALLOWED"
    # Before the first node nobody knows.
    assert labels_of(api, post(api, extensions=gvisor)) == {}
    assert labels_of(api, post(api, volumes=volumes, extensions=ON_DOCKER)) == {}
    plain = labels_of_capabilities("docker", Capabilities(oci_runtimes=["runc"]))
    api.world.session(runtimes=["docker"], labels=plain)
    refused(api, "extensions.sandmill.oci-runtime", "is runsc", "there are runc", extensions=gvisor)
    refused(api, field, "is /srv/a", "there are none", code=code, volumes=volumes, extensions=ON_DOCKER)
    template = {"image": {"uri": "host"}, "extensions": gvisor}
    capacity = {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1}
    answer = api.client.post("/v1/pools", json={"name": "p", "template": template, "capacitySpec": capacity})
    assert answer.status_code == 400
    assert answer.json()["message"].startswith("template.extensions.sandmill.oci-runtime: is runsc")
    # Another node can: it is placed there, and a member of a pool too.
    full = labels_of_capabilities("docker", Capabilities(oci_runtimes=["runc", "runsc"], host_paths=["/srv"]))
    able = api.world.session(runtimes=["docker"], labels=full)
    both = post(api, volumes=volumes, extensions=gvisor)
    assert labels_of(api, both).keys() == {
        "sandmill/can/docker/oci-runtime/runsc",
        "sandmill/can/docker/host-path/srv",
    }
    api.world.dispatcher.tick()
    (attempt,) = api.rows("SELECT node_id FROM attempts WHERE trial_id = %(id)s", id=both.json()["id"])
    assert attempt["node_id"] == able.node_id
    capacity = {"bufferMin": 1, "bufferMax": 1, "poolMin": 0, "poolMax": 1}
    made = api.client.post("/v1/pools", json={"name": "p", "template": template, "capacitySpec": capacity})
    assert made.status_code == 201, made.text
    member = post(api, image=None, resourceLimits=None, extensions={"poolRef": "p"})
    assert labels_of(api, member).keys() == {"sandmill/can/docker/oci-runtime/runsc"}
    # While that node is away nothing can start there.
    api.world.execute("UPDATE worker_sessions SET ended_at = now() WHERE node_id = %(id)s", id=able.node_id)
    refused(api, "extensions.sandmill.oci-runtime", extensions=gvisor)
    # A node of an earlier release may be able, and does not tell.
    api.world.session(runtimes=["docker"])
    assert labels_of(api, post(api, extensions=gvisor)) == {}


def test_what_only_a_small_node_can_do_is_not_for_large_sandboxes(api):
    gvisor = {**ON_DOCKER, "sandmill.oci-runtime": "runsc"}
    for cores, names in ((4000, ["runc"]), (1000, ["runc", "runsc"])):
        told = labels_of_capabilities("docker", Capabilities(oci_runtimes=names))
        api.world.session(runtimes=["docker"], labels=told, cpu_millicores=cores)
    assert post(api, extensions=gvisor, resourceLimits={"cpu": "10"}).status_code == 202
    limits = {"cpu": "11"}  # a tenth is reserved
    refused(api, "extensions.sandmill.oci-runtime", "together", extensions=gvisor, resourceLimits=limits)
    assert post(api, extensions=ON_DOCKER, resourceLimits=limits).status_code == 202


CAPS = [("pids", "4096", "4097"), ("disk", "102400Mi", "102401Mi")]


def job(**resources: Any) -> dict[str, Any]:
    steps = [{"name": "s", "run": "true"}]
    return {"key": "a", "image": {"ref": "host"}, "steps": steps, "resources": resources}


def refused_job(api: ApiWorld, path: str, body: dict[str, Any], field: str, *words: str) -> None:
    answer = api.client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    (problem,) = answer.json()["details"]
    assert problem["field"] == field
    for word in words:
        assert word in problem["message"]
    assert api.count("jobs") == 0


def post_pool(api: ApiWorld, name: str, limits: dict[str, str]) -> httpx.Response:
    capacity = {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1}
    template = {"image": {"uri": "host"}, "resourceLimits": limits}
    return api.client.post("/v1/pools", json={"name": name, "template": template, "capacitySpec": capacity})


@pytest.mark.parametrize(("key", "most", "more"), CAPS)
def test_limits_above_the_installations_are_refused(api, key, most, more):
    refused(api, f"resourceLimits.{key}", f"is {more}", f"at most {most}", resourceLimits={key: more})
    assert post(api, resourceLimits={key: most}).status_code == 202
    answer = post_pool(api, "p", {key: more})
    assert (answer.status_code, answer.json()["code"]) == (400, INVALID)
    assert answer.json()["message"].startswith(f"template.resourceLimits.{key}: is {more}")
    assert post_pool(api, "p", {key: most}).status_code == 201


@pytest.mark.parametrize(("key", "most", "more"), [("pids", 4096, 4097), ("disk_mb", 102400, 102401)])
def test_limits_of_jobs_above_the_installations_are_refused(api, key, most, more):
    jobs = {"jobs": [job(**{key: more})]}
    told = (f"jobs[0].resources.{key}", f"is {more}", f"at most {most}")
    refused_job(api, "/v1/batches", jobs, *told)
    refused_job(api, "/v1/jobs", job(**{key: more}), f"resources.{key}")
    plan = {"name": "n", "cron": "0 3 * * *", "timezone": "UTC", "batch": jobs}
    refused_job(api, "/v1/schedules", plan, f"batch.jobs[0].resources.{key}")
    open_batch = api.client.post("/v1/batches", json={"open": True, "jobs": []}).json()["id"]
    refused_job(api, f"/v1/batches/{open_batch}/jobs", jobs, *told)
    with changed_settings(api.app, sandbox_max_pids=300):
        refused_job(api, "/v1/batches", {"jobs": [job(pids=301)]}, "jobs[0].resources.pids", "at most 300")
    assert api.client.post("/v1/batches", json={"jobs": [job(**{key: most})]}).status_code == 202


def test_jobs_that_no_node_could_start_now_are_accepted_and_told(api):
    big = job(cpu=5, memory_mb=300)
    jobs = {"jobs": [big], "open": True}

    def warnings(path: str, body: dict[str, Any]) -> list[dict[str, str]]:
        answer = api.client.post(path, json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()["warnings"]

    assert warnings("/v1/batches", jobs) == []  # before the first node nobody knows
    api.world.session(runtimes=["fake"], cpu_millicores=4000)
    (told,) = warnings("/v1/batches", jobs)
    assert told["field"] == "jobs[0].resources.cpu"
    assert told["message"].startswith(
        "is 5; no node that takes work now and could run this has more than 4: "
    )
    assert warnings("/v1/jobs", big) == [{**told, "field": "resources.cpu"}]
    batch = api.client.post("/v1/batches", json={**jobs, "jobs": []}).json()["id"]
    assert warnings(f"/v1/batches/{batch}/jobs", {"jobs": [{**big, "key": "b"}]}) == [told]
    # It waits, with its reason, and a larger node takes it.
    (trial,) = api.client.get(f"/v1/batches/{batch}/trials").json()["items"]
    assert (trial["state"], trial["state_reason"]) == ("queued", "too_large_for_any_node")
    api.world.session(runtimes=["fake"], cpu_millicores=50_000)
    assert warnings("/v1/jobs", big) == []
    api.world.dispatcher.tick()
    assert api.client.get(f"/v1/trials/{trial['id']}").json()["state"] == "running"


def test_gpus_of_a_job_on_a_runtime_without_are_refused(api):
    refused_job(api, "/v1/jobs", {**job(gpu=1), "runtime": "local"}, "resources.gpu", "the runtime local")
    with changed_settings(api.app, runtime="local"):
        refused_job(api, "/v1/batches", {"jobs": [job(gpu=1)]}, "jobs[0].resources.gpu", "the runtime local")
    assert api.client.post("/v1/jobs", json={**job(gpu=1), "runtime": "docker"}).status_code == 202


def test_who_names_no_number_of_processes_has_no_more_than_there_may_be(api):
    with changed_settings(api.app, sandbox_max_pids=300):
        refused(api, "resourceLimits.pids", "at most 300", resourceLimits={"pids": "301"})
        sandbox = post(api).json()["id"]
        assert post_pool(api, "p", {"cpu": "1"}).status_code == 201
    (row,) = api.rows(
        "SELECT j.spec FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.id = %(id)s", id=sandbox
    )
    assert row["spec"]["resources"]["pids"] == 300
    (pool,) = api.rows("SELECT spec FROM sandbox_pools")
    assert pool["spec"]["resources"]["pids"] == 300
