from pathlib import Path

import pytest

from core.errors import SpecInvalidError
from runtimes.engine_facts import EngineFacts
from runtimes.oci_runtimes import check_oci_runtime, family_of

MOUNTS = (
    "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "22 21 8:2 / /var/lib/docker rw - xfs /dev/sda2 rw,attr2,{quota}\n"
    "23 21 8:3 / /var/lib/docker-other rw - xfs /dev/sda3 rw,prjquota\n"
)


def info(**changes):
    return {
        "ServerVersion": "20.10",
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "xfs"], ["Supports d_type", "true"]],
        "DockerRootDir": "/var/lib/docker",
        "Runtimes": {"runc": {}, "runsc": {}},
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "quota", "expected"),
    [
        ({}, "prjquota", True),
        ({}, "pquota", True),
        ({}, "noquota", False),
        ({"DriverStatus": [["Backing Filesystem", "extfs"]]}, "prjquota", False),
        ({"DockerRootDir": "/var/lib/docker-other"}, "noquota", True),
        ({"DockerRootDir": "/srv"}, "prjquota", False),
        ({"Driver": "zfs"}, "noquota", True),
        ({"Driver": "vfs"}, "prjquota", False),
    ],
)
def test_engine_limits_disks_where_its_driver_has_quotas(changes, quota, expected):
    assert EngineFacts.of(info(**changes), MOUNTS.format(quota=quota)).limits_disk is expected


def test_guards_of_the_engine_are_read_from_its_security_options():
    facts = EngineFacts.of(info(), MOUNTS)
    assert (facts.has_apparmor, facts.has_seccomp, facts.is_remapped) == (True, True, False)
    facts = EngineFacts.of(info(SecurityOptions=["name=userns"]), MOUNTS)
    assert (facts.has_apparmor, facts.has_seccomp, facts.is_remapped) == (False, False, True)
    assert facts.oci_runtimes == {"runc", "runsc"}
    assert facts.root == Path("/var/lib/docker")


def test_answer_of_an_engine_that_says_little_is_taken_for_the_least():
    facts = EngineFacts.of({})
    assert (facts.has_apparmor, facts.has_seccomp, facts.limits_disk) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (None, "runc"),
        ("crun", "runc"),
        ("runsc", "gvisor"),
        ("runsc-kvm", "gvisor"),
        ("kata-runtime", "machine"),
        ("io.containerd.kata.v2", "machine"),
        ("firecracker", "machine"),
    ],
)
def test_family_is_told_by_the_name(name, family):
    found = family_of(name)
    assert found.name == family
    assert found.shares_kernel is (family == "runc")


def test_missing_oci_runtime_is_named_beside_those_there_are():
    check_oci_runtime("runsc", {"runc", "runsc"})
    with pytest.raises(SpecInvalidError, match=r"no 'kata', only runc, runsc: add it") as caught:
        check_oci_runtime("kata", {"runsc", "runc"})
    assert caught.value.field == "oci_runtime"


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        ("cgroupfs 1", "/sys/fs/cgroup/pids/docker/c1/cgroup.procs"),
        ("cgroupfs 2", "/sys/fs/cgroup/docker/c1/cgroup.procs"),
        ("systemd 1", "/sys/fs/cgroup/pids/system.slice/docker-c1.scope/cgroup.procs"),
        ("systemd 2", "/sys/fs/cgroup/system.slice/docker-c1.scope/cgroup.procs"),
    ],
)
@pytest.mark.parametrize(("listed", "expected"), [("77\n", 77), ("77\n78\n", None), ("", None), (None, None)])
def test_the_only_process_of_a_container_is_read_from_its_group(monkeypatch, engine, place, listed, expected):
    def read(path):
        assert str(path) == place
        if listed is None:
            raise FileNotFoundError(path)
        return listed

    driver, version = engine.split()
    facts = EngineFacts.of(info(CgroupDriver=driver, CgroupVersion=version), MOUNTS)
    monkeypatch.setattr(Path, "read_text", read)
    assert facts.only_process("c1") == expected


def test_engine_that_keeps_no_groups_shows_no_process():
    facts = EngineFacts.of(info(CgroupDriver="none", DefaultRuntime="runsc"), MOUNTS)
    assert facts.only_process("c1") is None
    assert facts.default_oci_runtime == "runsc"
    assert EngineFacts.of(info(), MOUNTS).default_oci_runtime is None
