from dataclasses import replace

import pytest

from core.errors import BadImageError, SpecInvalidError
from runtimes.base import ALL_GPUS, VolumeMount
from runtimes.bundle import Bundle
from runtimes.container_spec import (
    ContainerImage,
    ContainerRules,
    container_settings,
    folders_to_look_for,
    folders_to_make,
    labels_of,
    own_user,
)
from runtimes.oci_runtimes import family_of
from tests.support.sandboxes import make_spec

BUNDLE = Bundle("/bundles/b", ("/.sbx/lib/ld.so", "/.sbx/app/execd.pyc"))
RULES = ContainerRules(seccomp="{}", default_user=(65534, 65534))


def settings(image=None, rules=RULES, **changes):
    return container_settings(
        make_spec(**changes), image or ContainerImage("sha256:1"), rules, BUNDLE, token="secret"
    )


def test_container_has_every_guard():
    host = settings()["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true", "seccomp={}"]
    assert host["ReadonlyRootfs"]
    assert not host["Privileged"]
    assert host["IpcMode"] == host["CgroupnsMode"] == "private"
    assert host["Binds"] == ["/bundles/b:/.sbx:ro"]
    assert {"/proc/keys", "/proc/kcore", "/sys/firmware"} <= set(host["MaskedPaths"])
    assert "Devices" not in host
    assert "CapAdd" not in host


def test_container_that_has_ended_stays_until_its_end_was_read():
    """An engine that removes it by itself, or starts it anew, takes its exit code and its output along."""
    host = settings()["HostConfig"]
    assert (host["AutoRemove"], host["RestartPolicy"]) == (False, {"Name": "no"})


def test_every_limit_is_set():
    limits = {
        "cpu_millicores": 250,
        "memory_bytes": 64 << 20,
        "disk_bytes": 8 << 20,
        "pids": 17,
        "open_files": 99,
    }
    host = settings(limits=limits, workdir="/work")["HostConfig"]
    assert (host["CpuQuota"], host["CpuPeriod"]) == (25_000, 100_000)
    assert host["Memory"] == host["MemorySwap"] == 64 << 20
    assert host["PidsLimit"] == 17
    assert {entry["Name"]: entry["Hard"] for entry in host["Ulimits"]} == {
        "nofile": 99,
        "core": 0,
        "fsize": 8 << 20,
    }
    assert host["ShmSize"] == 8 << 20
    assert host["LogConfig"]["Config"] == {"max-size": "64k", "max-file": "1"}


def test_writable_places_share_the_disk_limit_and_its_files():
    tmpfs = settings(limits={"disk_bytes": 8 << 20}, workdir="/work")["HostConfig"]["Tmpfs"]
    assert sorted(tmpfs) == ["/tmp", "/work"]
    assert all("size=4194304,nr_inodes=1024" in options for options in tmpfs.values())
    assert all("nosuid" in options and "nodev" in options for options in tmpfs.values())


@pytest.mark.parametrize(
    ("workdir", "image", "expected", "mounts"),
    [
        (None, ContainerImage("i"), "/tmp", ["/tmp"]),
        (None, ContainerImage("i", workdir="/app"), "/app", ["/tmp"]),
        ("/work", ContainerImage("i", workdir="/app"), "/work", ["/tmp", "/work"]),
        ("/work", ContainerImage("i", folders=frozenset({"/work"})), "/work", ["/tmp"]),
        ("/", ContainerImage("i"), "/", ["/tmp"]),
        ("/tmp/", ContainerImage("i"), "/tmp/", ["/tmp"]),
    ],
)
def test_workdir_is_made_only_where_the_image_has_none(workdir, image, expected, mounts):
    made = settings(image, workdir=workdir)
    assert made["WorkingDir"] == expected
    assert sorted(made["HostConfig"]["Tmpfs"]) == mounts


@pytest.mark.parametrize("workdir", ["x", "", "/a/../b", "/a\0"])
def test_workdir_that_is_no_path_is_refused(workdir):
    with pytest.raises(SpecInvalidError, match="workdir"):
        settings(ContainerImage("i", workdir=workdir), workdir=workdir)


def test_loader_settings_are_blank_for_execd_and_kept_for_commands():
    image = ContainerImage("i", environment={"LD_PRELOAD": "/a.so", "PATH": "/bin"})
    env = dict(entry.split("=", 1) for entry in settings(image, env={"LD_LIBRARY_PATH": "/l"})["Env"])
    assert (env["LD_PRELOAD"], env["SANDMILL_ORIG_LD_PRELOAD"]) == ("", "/a.so")
    assert (env["LD_LIBRARY_PATH"], env["SANDMILL_ORIG_LD_LIBRARY_PATH"]) == ("", "/l")
    assert env["PATH"] == "/bin"


def test_home_of_root_is_not_left_to_another_user():
    environment = {"HOME": "/root"}
    assert "HOME=/tmp" in settings(ContainerImage("i", environment=environment))["Env"]
    assert "HOME=/root" in settings(ContainerImage("i", environment=environment, user=(5, 5)))["Env"]


def test_every_sandbox_has_a_user_of_its_own_unless_told_otherwise():
    users = {
        settings(name=f"sm-{number}", rules=ContainerRules(seccomp="{}"))["User"] for number in range(500)
    }
    assert len(users) == 500
    numbers = [int(number) for user in users for number in user.split(":")]
    assert min(numbers) >= 0x70000000
    assert max(numbers) < 0x71000000
    assert own_user("sm-1") == own_user("sm-1")
    assert settings(ContainerImage("i", user=(5, 6)), rules=ContainerRules(seccomp="{}"))["User"] == "5:6"


def test_user_has_a_name_for_programs_that_ask():
    env = set(settings(ContainerImage("i", environment={"LOGNAME": "of-the-image"}))["Env"])
    assert {"USER=sandbox", "LOGNAME=of-the-image"} <= env
    assert not any(entry.startswith("USER=") for entry in settings(ContainerImage("i", user=(5, 5)))["Env"])


def test_volumes_of_the_image_are_places_in_memory_that_share_the_limit():
    image = ContainerImage("i", volumes=("/var/lib/data", "//work/", "/tmp"))
    tmpfs = settings(image, limits={"disk_bytes": 9 << 20}, workdir="/work")["HostConfig"]["Tmpfs"]
    assert sorted(tmpfs) == ["/tmp", "/var/lib/data", "/work"]
    for options in tmpfs.values():
        assert {"nosuid", "nodev", f"size={3 << 20}"} <= set(options.split(","))


@pytest.mark.parametrize(
    "path",
    [
        "/.sbx/lib",
        "/./.sbx",
        "//.sbx/",
        "/proc/x",
        "/dev",
        "/sys/fs",
        "/",
        "/.",
        "data",
        "/a/../.sbx",
        "/a:b",
        "/a\0",
    ],
)
def test_volume_that_would_cover_what_is_not_the_images_is_refused(path):
    with pytest.raises(BadImageError, match="volume"):
        settings(ContainerImage("i", volumes=(path,)))


def test_image_of_too_many_volumes_is_refused():
    with pytest.raises(BadImageError, match="17 volumes"):
        settings(ContainerImage("i", volumes=tuple(f"/v{number}" for number in range(17))))


def test_labels_go_round():
    labels = settings(name="sm-1", labels={"trial": "7", "a.b": ""})["Labels"]
    assert labels["sandmill.sandbox"] == "sm-1"
    assert labels_of({**labels, "maintainer": "somebody"}) == {"trial": "7", "a.b": ""}


@pytest.mark.parametrize("workdir", ["/proc", "/proc/1", "//sys/x", "/./dev/shm", "/.sbx", "/.sbx/app"])
def test_workdir_does_not_cover_what_is_the_kernels_or_execds(workdir):
    with pytest.raises(SpecInvalidError, match="workdir") as caught:
        settings(workdir=workdir)
    assert caught.value.field == "workdir"


def test_execd_gets_its_token_and_is_sealed():
    made = settings(ContainerImage("i", environment={"EXECD_ACCESS_TOKEN": "of the image"}))
    assert [entry for entry in made["Env"] if "TOKEN" in entry] == ["EXECD_ACCESS_TOKEN=secret"]
    assert "--sealed" in made["Entrypoint"]
    assert "--sealed" not in settings(is_sealed=False)["Entrypoint"]


def test_image_has_no_say_in_how_execd_works():
    image = ContainerImage("i", environment={"EXECD_STRIP_NEWLINES": "1", "EXECD_ENVS": "/tmp/x", "A": "1"})
    env = settings(image)["Env"]
    assert {"EXECD_STRIP_NEWLINES=", "EXECD_ENVS=", "A=1"} <= set(env)


@pytest.mark.parametrize("name", ["EXECD_ENVS", "EXECD_ACCESS_TOKEN", "SANDMILL_ORIG_LD_PRELOAD"])
def test_job_cannot_set_what_is_execds(name):
    with pytest.raises(SpecInvalidError, match=name) as caught:
        settings(env={name: "x"})
    assert caught.value.field == "env"


LIVE = {"is_writable": True, "is_sealed": False}


def test_writable_sandbox_has_the_images_user_and_few_rights():
    made = settings(ContainerImage("i", user=(5, 6), written_user="app"), **LIVE)
    host = made["HostConfig"]
    assert made["User"] == "app"
    assert not host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Tmpfs"] == {}
    assert settings(**LIVE)["User"] == ""
    assert not any(entry.startswith(("HOME=", "USER=")) for entry in settings(**LIVE)["Env"])


def test_volumes_of_the_image_stay_in_memory_unless_a_mount_is_there():
    image = ContainerImage("i", volumes=("/data", "/other"))
    mount = VolumeMount("v", "/data/", host_path="/srv")
    assert sorted(settings(image, volumes=[mount], **LIVE)["HostConfig"]["Tmpfs"]) == ["/other"]


def test_disk_is_limited_by_the_engine_or_watched():
    watched = settings(**LIVE)
    assert watched["Labels"]["sandmill.disk-bytes"] == str(32 << 20)
    assert "StorageOpt" not in watched["HostConfig"]
    held = settings(rules=replace(RULES, limits_disk=True), **LIVE)
    assert "sandmill.disk-bytes" not in held["Labels"]
    assert held["HostConfig"]["StorageOpt"] == {"size": str(32 << 20)}
    assert "sandmill.disk-bytes" not in settings()["Labels"]


def test_gpus_are_asked_of_the_engine():
    assert "DeviceRequests" not in settings()["HostConfig"]
    for count in (2, ALL_GPUS):
        (request,) = settings(limits={"gpu": count})["HostConfig"]["DeviceRequests"]
        assert request == {"Driver": "", "Count": count, "Capabilities": [["gpu"]]}


def test_profile_of_apparmor_is_named_where_there_is_one():
    options = settings(rules=replace(RULES, apparmor="docker-default"))["HostConfig"]["SecurityOpt"]
    assert "apparmor=docker-default" in options


def test_own_runtime_goes_before_the_nodes_and_has_room_for_its_threads():
    rules = replace(RULES, oci_runtime="crun")
    assert settings(rules=rules)["HostConfig"]["Runtime"] == "crun"
    gvisor = replace(rules, family=family_of("runsc"))
    made = settings(rules=gvisor, oci_runtime="runsc", limits={"pids": 10})
    assert made["HostConfig"]["Runtime"] == "runsc"
    assert made["HostConfig"]["PidsLimit"] == 266
    # Else its loopback device would be down.
    assert not made["NetworkDisabled"]
    assert made["HostConfig"]["NetworkMode"] == "none"


def test_node_adds_variables():
    rules = replace(RULES, environment={"A": "node", "B": "node"})
    made = settings(ContainerImage("i", environment={"A": "image"}), rules, env={"B": "own"})
    assert {"A=node", "B=own"} <= set(made["Env"])


def test_open_files_are_no_more_than_the_engine_can_give():
    def of(limit, asked):
        host = settings(rules=replace(RULES, open_files_limit=limit), limits={"open_files": asked})[
            "HostConfig"
        ]
        return next(entry["Hard"] for entry in host["Ulimits"] if entry["Name"] == "nofile")

    assert (of(None, 65_536), of(20_000, 65_536), of(20_000, 1024)) == (65_536, 20_000, 1024)


def test_users_of_a_remapping_engine_are_among_those_it_has():
    numbers = {own_user(f"sm-{number}", is_remapped=True)[0] for number in range(500)}
    assert len(numbers) > 450
    assert min(numbers) >= 10_000
    assert max(numbers) < 60_000


def test_missing_folders_of_a_writable_sandbox_are_made_for_its_user():
    spec = make_spec(workdir="/a//b/./c", **LIVE)
    assert folders_to_look_for(spec) == ["/tmp", "/a", "/a/b", "/a/b/c"]
    image = ContainerImage("i", user=(5, 6), folders=frozenset({"/a"}))
    assert folders_to_make(spec, image, RULES) == {
        "/tmp": (0, 0, 0o1777),
        "/a/b": (5, 6, 0o755),
        "/a/b/c": (5, 6, 0o755),
    }
    assert folders_to_look_for(make_spec(workdir="/a/b")) == ["/a/b"]
    assert folders_to_make(make_spec(workdir="/a/b"), image, RULES) == {}
