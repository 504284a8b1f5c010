"""What a pool's template may say, in both forms, and that it is the same thing as a create that says the same."""

from typing import Any

import pytest

from api.wire.pool_requests import check_pool_name, to_pool_template
from api.wire.requests import DEFAULT_RESOURCES, to_new_sandbox
from api.wire.schemas import CapacityRequest, CreateSandboxRequest
from core.errors import InvalidRequestError
from services.jobspec import JobSpec, Resources
from services.pool_plan import Capacity
from services.pools import check_capacity, is_poolable, pool_key
from services.sandbox_errors import WireInvalidError
from services.session_spec import SessionSpec

IMAGE = {"uri": "ubuntu:24.04"}
IDLE = ["tail", "-f", "/dev/null"]


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"image": IMAGE["uri"], **(container or {})}], **spec}}


def key_of_create(**changes: Any) -> str:
    body = {"image": IMAGE, "entrypoint": IDLE, "resourceLimits": {"cpu": "1", "memory": "2Gi"}, **changes}
    return pool_key(to_new_sandbox(CreateSandboxRequest.model_validate(body)), "local")


def test_a_template_without_more_is_what_official_clients_create():
    for template in ({"image": IMAGE}, pod()):
        sandbox = to_pool_template(template).sandbox
        assert pool_key(sandbox, "local") == key_of_create()
        assert sandbox.spec.resources == DEFAULT_RESOURCES
        assert list(sandbox.entrypoint) == IDLE


def test_both_forms_say_the_same():
    plain = {
        "image": IMAGE,
        "entrypoint": ["python3", "-m", "http.server"],
        "env": {"A": "1"},
        "resourceLimits": {"cpu": "500m", "memory": "256Mi", "gpu": "1"},
        "metadata": {"team": "a"},
        "extensions": {"sandmill.runtime": "docker", "sandmill.oci-runtime": "runsc"},
    }
    container = {
        "name": "main",
        "command": ["python3"],
        "args": ["-m", "http.server"],
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": "500m", "memory": "256Mi", "nvidia.com/gpu": "1"}},
    }
    metadata = {"labels": {"team": "a"}, "annotations": {"sandmill.runtime": "docker"}}
    of_pod = {"metadata": metadata, **pod(container, runtimeClassName="runsc", restartPolicy="Never")}
    one, other = to_pool_template(plain).sandbox, to_pool_template(of_pod).sandbox
    assert one.spec == other.spec
    assert (one.metadata, one.runtime, one.entrypoint) == (other.metadata, other.runtime, other.entrypoint)
    assert one.spec.env == {"A": "1"}
    assert one.spec.oci_runtime == "runsc"


def test_labels_of_nodes_are_part_of_the_key():
    sandbox = to_pool_template(pod(nodeSelector={"disk": "fast"})).sandbox
    assert sandbox.node_labels == {"disk": "fast"}
    assert pool_key(sandbox, "local") != key_of_create()


@pytest.mark.parametrize(
    "changes",
    [
        {"image": {"uri": "debian"}},
        {"entrypoint": ["sleep", "1"]},
        {"env": {"A": "1"}},
        {"resourceLimits": {"cpu": "2", "memory": "2Gi"}},
        {"resourceLimits": {"cpu": "1", "memory": "2Gi", "pids": "77"}},
        {"extensions": {"sandmill.runtime": "docker"}},
        {"extensions": {"sandmill.oci-runtime": "runsc"}},
        {"platform": {"os": "linux", "arch": "amd64"}},
        {"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "c"}}]},
    ],
)
def test_whatever_cannot_be_changed_later_is_in_the_key(changes: dict[str, Any]):
    assert key_of_create(**changes) != key_of_create()


@pytest.mark.parametrize(
    "changes",
    [{"timeout": 60}, {"metadata": {"a": "b"}}, {"secureAccess": True}, {"extensions": {"x": "y"}}],
)
def test_what_can_be_given_later_is_not(changes: dict[str, Any]):
    assert key_of_create(**changes) == key_of_create()


def test_a_create_with_credentials_or_from_a_snapshot_takes_from_no_pool():
    def poolable(**changes: Any) -> bool:
        body = {"image": IMAGE, "entrypoint": IDLE, "resourceLimits": {"cpu": "1"}, **changes}
        return is_poolable(to_new_sandbox(CreateSandboxRequest.model_validate(body)))

    assert poolable()
    assert not poolable(image={**IMAGE, "auth": {"username": "u", "password": "p"}})
    assert not poolable(image=None, snapshotId="01a22df5-0f1a-77b5-862e-5845949efcf1")


def test_credentials_are_not_kept_with_the_template():
    template = to_pool_template({"image": {**IMAGE, "auth": {"username": "u", "password": "p4ss"}}})
    assert template.sandbox.auth == ("u", "p4ss")
    assert template.sent == {"image": IMAGE}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({}, "template.image"),
        ({"image": IMAGE, "entrypiont": ["x"]}, "template.entrypiont"),
        ({"image": IMAGE, "volumes": []}, "template.volumes"),
        ({"image": IMAGE, "resourceLimits": {"cpu": "x"}}, "template.resourceLimits.cpu"),
        ({"image": IMAGE, "env": {"SANDMILL_X": "1"}}, "template.env.SANDMILL_X"),
        ({"image": IMAGE, "metadata": {"opensandbox.io/a": "1"}}, "template.metadata.opensandbox.io/a"),
        ({"image": IMAGE, "extensions": {"poolRef": "p"}}, "template.extensions.poolRef"),
        (pod(volumes=[]), "template.spec.volumes"),
        (pod(initContainers=[]), "template.spec.initContainers"),
        (pod(imagePullSecrets=[]), "template.spec.imagePullSecrets"),
        (pod({"ports": []}), "template.spec.containers[0].ports"),
        (pod({"args": ["x"]}), "template.spec.containers.0.args"),
        (pod({"env": [{"name": "A", "valueFrom": {}}]}), "template.spec.containers[0].env[0].valueFrom"),
        (pod(containers=[]), "template.spec.containers"),
        (pod(containers=[{"image": "a"}, {"image": "b"}]), "template.spec.containers"),
        ({"metadata": {"annotations": {"x": "y"}}, **pod()}, "template.extensions.x"),
        ({"kind": "Pod", **pod()}, "template.kind"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(template: dict[str, Any], field: str):
    with pytest.raises(InvalidRequestError) as caught:
        to_pool_template(template)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["a", "a-b", "a.b", "0", "a" * 63, f"{'a.' * 126}b"])
def test_dns_names_are_names_of_pools(name: str):
    assert check_pool_name(name) == name


@pytest.mark.parametrize("name", ["", "*", "A", "a_b", "-a", "a-", "a..b", ".a", "a" * 64, "a." * 127, "a\n"])
def test_others_are_not(name: str):
    with pytest.raises(WireInvalidError) as caught:
        check_pool_name(name)
    assert caught.value.field == "name"


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ((3, 2, 0, 9), "capacitySpec.bufferMin"),
        ((0, 2, 9, 8), "capacitySpec.poolMin"),
        ((3, 3, 0, 2), "capacitySpec.bufferMin"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(numbers: tuple[int, ...], field: str):
    with pytest.raises(WireInvalidError) as caught:
        check_capacity(Capacity(*numbers))
    assert caught.value.field == field


@pytest.mark.parametrize("changes", [{"bufferMin": -1}, {"poolMax": 10_001}, {"poolMax": 1.5}, {"x": 1}])
def test_numbers_are_whole_and_bounded(changes: dict[str, Any]):
    body = {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 0, **changes}
    with pytest.raises(ValueError, match="validation error"):
        CapacityRequest.model_validate(body)


def test_a_snapshot_is_no_image_neither_of_a_sandbox_nor_of_a_pool():
    image = {"uri": "snapshot:of-somebody-else"}
    with pytest.raises(WireInvalidError, match="snapshotId"):
        key_of_create(image=image)
    for template in ({"image": image}, pod({"image": image["uri"]})):
        with pytest.raises(InvalidRequestError, match="snapshotId"):
            to_pool_template(template)


FOR_JOBS = {"sandmill.for": "jobs"}


def test_members_for_jobs_have_what_a_job_has_that_says_nothing():
    """In both forms; no create is the same thing, whatever it asks for."""
    job = JobSpec(key="job", image=IMAGE["uri"], steps=())
    for template in (
        {"image": IMAGE, "extensions": FOR_JOBS},
        {**pod(), "metadata": {"annotations": FOR_JOBS}},
    ):
        spec = to_pool_template(template).sandbox.spec
        assert (spec.resources, spec.job_workdir) == (job.resources, job.workdir)
        assert pool_key(to_pool_template(template).sandbox, "local") != key_of_create()
    alike = {"cpu": "1", "memory": "512Mi", "pids": "256"}
    template = {"image": IMAGE, "resourceLimits": alike, "extensions": FOR_JOBS}
    assert pool_key(to_pool_template(template).sandbox, "local") != key_of_create(resourceLimits=alike)


def test_members_for_jobs_have_the_limits_and_the_workdir_of_their_template():
    extensions = {**FOR_JOBS, "sandmill.workdir": "/testbed"}
    limits = {"cpu": "2", "memory": "1Gi", "disk": "2Gi", "pids": "99", "gpu": "1"}
    plain = to_pool_template({"image": IMAGE, "extensions": extensions, "resourceLimits": limits})
    container = {"resources": {"limits": {**limits, "nvidia.com/gpu": "1"}}}
    del container["resources"]["limits"]["gpu"], container["resources"]["limits"]["disk"]
    container["resources"]["limits"]["ephemeral-storage"] = "2Gi"
    of_pod = to_pool_template({**pod(container), "metadata": {"annotations": extensions}})
    for template in (plain, of_pod):
        spec = template.sandbox.spec
        assert spec.resources == Resources(2000, 1 << 30, 2 << 30, 99, 1)
        assert spec.job_workdir == "/testbed"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"extensions": {"sandmill.for": "job"}}, "extensions.sandmill.for"),
        ({"extensions": {"sandmill.workdir": "/w"}}, "extensions.sandmill.workdir"),
        ({"extensions": {**FOR_JOBS, "sandmill.workdir": "w"}}, "extensions.sandmill.workdir"),
        ({"extensions": {**FOR_JOBS, "sandmill.workdir": "/w\0"}}, "extensions.sandmill.workdir"),
        (
            {"extensions": {**FOR_JOBS, "sandmill.oci-runtime": "runsc"}},
            "extensions.sandmill.oci-runtime",
        ),
        ({"extensions": FOR_JOBS, "entrypoint": ["sleep", "1"]}, "entrypoint"),
        ({"extensions": FOR_JOBS, "env": {"A": "1"}}, "env"),
        ({"extensions": FOR_JOBS, "metadata": {"a": "b"}}, "metadata"),
        (
            {"extensions": FOR_JOBS, "image": {**IMAGE, "auth": {"username": "u", "password": "p"}}},
            "image.auth",
        ),
        ({"extensions": {"sandmill.four": "jobs"}}, "extensions.sandmill.four"),
    ],
)
def test_what_no_member_for_jobs_can_have_is_refused_by_its_field(changes, field):
    with pytest.raises(WireInvalidError) as caught:
        to_pool_template({"image": IMAGE, **changes})
    assert caught.value.field == f"template.{field}"


def test_pools_that_are_there_keep_their_keys():
    """A stored spec of a release that knew no members for jobs reads and digests as it did."""
    spec = to_pool_template({"image": IMAGE}).sandbox.spec
    assert "job_workdir" not in spec.to_json()
    assert SessionSpec.from_json(spec.to_json()) == spec
    for_jobs = to_pool_template({"image": IMAGE, "extensions": FOR_JOBS}).sandbox.spec
    assert SessionSpec.from_json(for_jobs.to_json()) == for_jobs
