"""What nodes say they can do, and what is asked of them for it."""

from typing import Any

import pytest

from runtimes.base import Capabilities
from services.jobspec import Resources
from services.node_capabilities import (
    asks_for_capabilities,
    labels_asked,
    labels_of_capabilities,
    may_make_snapshots,
    told_of,
)
from services.sandbox_errors import WireInvalidError
from services.session_spec import SessionSpec, Volume

RUNSC = "sandmill/can/docker/oci-runtime/runsc"
DATA, BELOW = "sandmill/can/docker/host-path/data", "sandmill/can/docker/host-path/data/sets"


def node(*host_paths: str, oci_runtimes: tuple[str, ...] = ("runc",), **others: str) -> dict[str, str]:
    told = labels_of_capabilities("docker", Capabilities(oci_runtimes=oci_runtimes, host_paths=host_paths))
    return {**told, **others}


def wanted(*host_paths: str, **changes: Any) -> SessionSpec:
    volumes = tuple(
        Volume(name=f"v{number}", mount_path=f"/v{number}", host_path=path)
        for number, path in enumerate(host_paths)
    )
    return SessionSpec(image="i", resources=Resources(), volumes=volumes, **changes)


def asked(spec: SessionSpec, *nodes: dict[str, str], **others: str) -> dict[str, str]:
    return dict(labels_asked(spec, "docker", nodes, others=others))


def refusal(spec: SessionSpec, *nodes: dict[str, str], **others: str) -> WireInvalidError:
    with pytest.raises(WireInvalidError) as caught:
        asked(spec, *nodes, **others)
    return caught.value


def test_labels_say_what_a_runtime_can_do():
    assert labels_of_capabilities("local", Capabilities(makes_snapshots=False)) == {
        "sandmill/can/local": "yes"
    }
    capabilities = Capabilities(oci_runtimes={"runsc"}, host_paths=["/data/"])
    assert labels_of_capabilities("docker", capabilities) == dict.fromkeys(
        ["sandmill/can/docker", "sandmill/can/docker/snapshots", RUNSC, DATA], "yes"
    )
    both = {**node("/data", a="b"), "sandmill/can/docker2": "yes"}
    assert told_of(both, "docker") == node("/data")


def test_only_an_oci_runtime_and_folders_of_the_host_ask_for_anything():
    named = Volume(name="v", mount_path="/v", claim="c")
    assert not asks_for_capabilities(SessionSpec(image="i", resources=Resources(), volumes=(named,)))
    assert asks_for_capabilities(wanted(oci_runtime="runc"))
    assert asks_for_capabilities(wanted("/data"))


def test_snapshots_are_made_where_the_node_says_so_or_says_nothing():
    assert may_make_snapshots({}, "local")
    assert may_make_snapshots(labels_of_capabilities("local", Capabilities()), "local")
    assert not may_make_snapshots(
        labels_of_capabilities("local", Capabilities(makes_snapshots=False)), "local"
    )


def test_sandbox_asks_for_what_some_node_has():
    spec = wanted("/data/sets/a", oci_runtime="runsc")
    able = node("/data", oci_runtimes=("runc", "runsc"))
    assert asked(spec, node("/data"), able, node()) == {RUNSC: "yes", DATA: "yes"}


def test_oci_runtime_that_no_engine_has_is_refused_with_those_there_are():
    error = refusal(wanted(oci_runtime="runsc"), node(), node(oci_runtimes=("crun",)))
    assert (error.code, error.field) == ("SANDBOX::INVALID_PARAMETER", "extensions.sandmill.oci-runtime")
    assert "is runsc," in error.message
    assert error.message.endswith("there are crun, runc")


@pytest.mark.parametrize(
    ("path", "folders", "told"),
    [
        ("/etc", ("/data", "/srv"), "there are /data, /srv"),
        ("/database", ("/data",), "there are /data"),
        ("/etc", (), "SANDMILL_DOCKER_ALLOWED_HOST_PATHS"),
    ],
    ids=["outside", "same-beginning", "none"],
)
def test_folder_that_no_node_lets_be_seen_is_refused_by_its_place(path, folders, told):
    error = refusal(wanted("/data/x" if "/data" in folders else path, path), node(*folders))
    number = 1 if "/data" in folders else 0
    assert (error.code, error.field) == ("VOLUME::HOST_PATH_NOT_ALLOWED", f"volumes[{number}].host.path")
    assert told in error.message


def test_of_folders_within_each_other_the_one_of_most_nodes_is_asked_for():
    assert asked(wanted("/data/sets/a"), node("/data"), node("/data/sets"), node("/data/sets")) == {
        BELOW: "yes"
    }
    # But only of nodes that can do the rest as well.
    able = node("/data", oci_runtimes=("runsc",))
    spec = wanted("/data/sets/a", oci_runtime="runsc")
    assert asked(spec, able, node("/data/sets"), node("/data/sets")) == {RUNSC: "yes", DATA: "yes"}


def test_what_no_one_node_has_together_is_refused():
    error = refusal(wanted("/data", oci_runtime="runsc"), node("/data"), node(oci_runtimes=("runsc",)))
    assert error.field == "volumes[0].host.path"
    assert "together" in error.message
    error = refusal(wanted("/data"), node(zone="a"), node("/data", zone="b"), zone="a")
    assert "together" in error.message


def test_what_only_nodes_have_that_are_too_small_is_refused():
    gvisor, plain = node(oci_runtimes=("runsc",)), node()
    spec = wanted(oci_runtime="runsc")
    with pytest.raises(WireInvalidError, match="together") as caught:
        labels_asked(spec, "docker", [plain], others={}, too_small=[gvisor])
    assert caught.value.field == "extensions.sandmill.oci-runtime"
    # Where none is large enough that is here, the one that is may be away.
    assert labels_asked(spec, "docker", [], others={}, too_small=[gvisor]) == {}


@pytest.mark.parametrize(
    ("nodes", "others"),
    [([], {}), ([node(), {}], {}), ([node(zone="a")], {"zone": "b"})],
    ids=["no-node", "one-does-not-tell", "its-node-is-away"],
)
def test_where_it_is_not_known_nothing_is_refused(nodes, others):
    assert asked(wanted("/data", oci_runtime="runsc"), *nodes, **others) == {}
