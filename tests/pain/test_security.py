"""Holes that users of similar services found, tried on every real runtime.

Two more are tried where their parts are tested: a dashboard that is open by default (B-161) in
`integration/launcher/test_up.py`, `integration/compose` and `unit/launcher/test_cli.py`; a deleted key that goes on
working (B-163) in `integration/api/test_tenants.py`.
"""

import json
import shutil
import tempfile
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from api.schemas.jobs import JobRequest
from core.errors import InvalidRequestError, NotFoundError, SpecInvalidError
from runtimes.base import Command, FileUpload, SandboxSpec, VolumeMount
from runtimes.bundle import BUNDLE_MOUNT, Bundle
from runtimes.container_spec import ContainerImage, ContainerRules, container_settings
from runtimes.docker import DockerConfig
from runtimes.host_folders import open_host_path
from tests.support import probes
from tests.support.outside import background, host_processes, listening_on_the_host, sleep_mark
from tests.support.sandboxes import make_spec

SECRET = b"of the host alone\n"


@pytest.fixture
def host_folder():
    """A folder of the host that root may write, with one file in it; unchanged in the end."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "file").write_bytes(SECRET)
    try:
        yield folder
        assert [path.name for path in folder.iterdir()] == ["file"]
        assert (folder / "file").read_bytes() == SECRET
    finally:
        shutil.rmtree(folder)


LINKS = {
    "symbolic": "ln -s {folder}/file /work/result",
    "by-process-1": "ln -s /proc/1/root{folder}/file /work/result",
    "by-own-root": "ln -s /proc/self/root{folder}/file /work/result",
    "parent": "ln -s {folder} /work/out; ln -s out/file /work/result",
    "hard": "ln {folder}/file /work/result",
    "pipe": "mkfifo /work/result",
}


@pytest.mark.parametrize("make", LINKS.values(), ids=LINKS)
def test_link_in_the_place_of_a_result_leads_the_host_nowhere(shared_box, host_folder, make):
    """B-157: what is read, written or looked at through it is the sandbox's, or nothing."""
    shared_box.sh("rm -rf /work/*; " + make.format(folder=host_folder))
    with suppress(NotFoundError, InvalidRequestError):
        assert shared_box.client.download("/work/result", max_bytes=1 << 20) != SECRET
    with suppress(SpecInvalidError):
        shared_box.client.upload([FileUpload("/work/result", b"forged\n", 0o666)])
    assert (host_folder / "file").stat().st_mode & 0o777 == 0o644


def test_folder_swapped_for_a_link_leads_the_host_nowhere(shared_box, host_folder):
    """B-157: while files are written into it."""
    swap = f"cd /work; while :; do ln -sfn {host_folder} d; rm -f d; mkdir d; rm -rf d; done"
    with background(shared_box, f"echo on; {swap}", until=b"on\n"):
        for number in range(200):
            with suppress(SpecInvalidError):
                shared_box.client.upload([FileUpload(f"/work/d/file{number}", b"forged\n")])


def test_build_step_is_as_confined_as_what_it_builds(real_kind, host_folder):
    """B-158: reads nothing of the host, reaches nobody, and its daemon does not wait for the next step."""
    mark = sleep_mark()
    with real_kind.box(workdir="/work", limits={"pids": 32}) as box, listening_on_the_host() as targets:
        box.client.upload([FileUpload("/work/build.py", probes.program_text("network").encode())])
        python = " ".join(box.python_argv)
        build = (
            f"cat {host_folder}/file; (setsid sleep {mark} &); "
            f"{python} /work/build.py '{json.dumps(targets)}'"
        )
        said = box.run(Command(shell=build, kill_leftovers=True, timeout_seconds=60))
        assert json.loads(said.out) == []
        assert host_processes(mark) == []
        assert probes.privilege_faults(probes.find(box, "privileges")) == []


def test_no_field_of_a_sandbox_names_a_place_of_the_host():
    """B-160: what cannot be said cannot be let through, but for volumes, which the operator lists.

    A host name is one inside, and an OCI runtime one that the engine was told of.
    """
    words = ("volume", "mount", "bind", "device", "host", "privilege", "capab", "option", "runtime", "user")
    named = {field.name for field in fields(SandboxSpec) if any(word in field.name for word in words)}
    assert named == {"volumes", "hostname", "oci_runtime"}


def test_no_path_of_the_host_is_let_through_unless_it_is_listed(tmp_path):
    """B-160: the list is empty unless the operator fills it."""
    assert DockerConfig(bundle_dir=tmp_path, state_dir=tmp_path).allowed_host_paths == ()
    with pytest.raises(SpecInvalidError, match="volumes"):
        open_host_path(VolumeMount("v", "/m", host_path=str(tmp_path)), str(tmp_path), (), (1000, 1000))


@pytest.mark.parametrize(
    "field",
    [
        "volumes",
        "mounts",
        "binds",
        "devices",
        "privileged",
        "cap_add",
        "security_opt",
        "pid_mode",
        "extensions",
    ],
)
def test_request_for_more_than_a_sandbox_is_refused(field):
    """B-160, T8: by name, at the edge."""
    job = {"key": "a", "image": {"ref": "host"}, "steps": [{"name": "step", "run": "true"}]}
    JobRequest.model_validate(job)
    for place in (job, job["image"], job["steps"][0]):
        place[field] = ["/:/host"]
        with pytest.raises(ValidationError, match=field):
            JobRequest.model_validate(job)
        del place[field]


def test_only_the_bundle_of_the_host_is_mounted_in_a_container(tmp_path):
    """B-160: and that read-only."""

    rules = ContainerRules(seccomp="{}", default_user=(5, 5))
    spec = make_spec(workdir="/work", env={"A": "/:/host"}, labels={"volumes": "/:/host"})
    settings = container_settings(spec, ContainerImage("image"), rules, Bundle(tmp_path, ("x",)), token="x")
    assert settings["HostConfig"]["Binds"] == [f"{tmp_path}:{BUNDLE_MOUNT}:ro"]
    more = ("Mounts", "VolumesFrom", "Devices", "DeviceRequests", "CapAdd")
    assert not [name for name in more if settings["HostConfig"].get(name)]
    assert settings["HostConfig"]["Privileged"] is False


def test_every_mount_inside_is_the_sandboxs_own_or_read_only(shared_box):
    """B-160: seen from inside; a mount of the host that can be written would be a way out."""
    mounts = [line.split() for line in shared_box.sh("cat /proc/self/mountinfo").out.splitlines()]
    virtual = {"tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2", "overlay"}
    for mount in mounts:
        kind = mount[mount.index("-") + 1]
        options = {*mount[5].split(","), *mount[-1].split(",")}
        assert kind in virtual or "ro" in options, mount
    assert not [mount for mount in mounts if "docker.sock" in mount[4] or "containerd" in mount[4]]
