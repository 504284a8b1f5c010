"""What holds a writable container of root, and what of the host it may see; each guard with what happens without it."""

import json
import shutil
import subprocess
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import ImageNotFoundError, SpecInvalidError
from runtimes import container_images, host_folders
from runtimes.base import VolumeClaim, VolumeMount
from runtimes.container_volumes import PreparedMounts
from runtimes.docker import DockerConfig, DockerRuntime
from tests.support import probes
from tests.support.images import (
    BUSYBOX_IMAGE,
    DEBIAN_IMAGE,
    derived_image,
    ensure_debian_image,
    file_of_image,
)
from tests.support.outside import listening_on_the_host
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import START_SECONDS, Kind, docker_kind

pytestmark = pytest.mark.docker

LIVE = {"is_sealed": False, "is_writable": True}
ALLOWED = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}


@pytest.fixture(scope="module")
def kind(runtime_folder):
    yield from kind_named("docker", runtime_folder)


@pytest.fixture
def weakened(runtime_folder, kind):
    """Make a docker runtime whose rules have been changed."""

    @contextmanager
    def make(**changes):
        class Weakened(DockerRuntime):
            def rules(self):
                return replace(super().rules(), **changes)

        folders = {"bundle_dir": runtime_folder / "bundles", "state_dir": runtime_folder / "docker"}
        runtime = Weakened(DockerConfig(**folders))
        try:
            yield Kind(runtime, kind.image, kind.python_argv)
        finally:
            runtime.close()

    return make


@pytest.fixture
def shared(tmp_path):
    """A folder sandboxes may see, with a secret beside it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("the secret")
    folder = tmp_path / "shared"
    (folder / "part").mkdir(parents=True)
    return folder


@pytest.fixture
def sharing(runtime_folder, shared, kind):
    del kind
    with docker_kind(runtime_folder, allowed_host_paths=(str(shared),)) as made:
        yield made


@pytest.fixture
def volume():
    name = f"sandmill-test-{uuid.uuid4().hex[:12]}"
    yield name
    subprocess.run(["docker", "volume", "rm", "--force", name], check=False, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    "program", ["system_calls", "engine_sockets", "host_links", "attack_execd", "call_execd", "descriptors"]
)
def test_root_of_a_writable_container_finds_no_way_out(kind, program):
    with kind.box(**LIVE) as box:
        assert probes.find(box, program) == []


def test_root_of_a_writable_container_changes_nothing_of_the_kernel(kind):
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    with kind.box(**LIVE) as box:
        # Of its own process 1 only.
        assert probes.find(box, "kernel_files") in ([], ["can write /proc/1/oom_score_adj"])
        assert (
            box.sh("mknod /tmp/disk b 8 0 || mount -t tmpfs none /mnt || echo x > /proc/sysrq-trigger").code
            != 0
        )
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_root_of_a_writable_container_reaches_no_network(kind):
    with kind.box(**LIVE) as box, listening_on_the_host() as targets:
        assert probes.find(box, "network", json.dumps(targets)) == []


def test_dropping_is_what_leaves_root_without_more(weakened):
    with weakened(drop_capabilities=()) as loose, loose.box(**LIVE) as box:
        assert int(probes.find(box, "privileges")["CapBnd"], 16) > 0xEB


def test_setuid_program_gives_an_ordinary_user_nothing(weakened, kind):
    """no-new-privileges, which is all that stops it here: the container has root's capabilities to give."""
    ensure_debian_image()
    files = {"cat": file_of_image(DEBIAN_IMAGE, "bin/cat")}
    changes = ("ENV PATH=/usr/bin:/bin", "USER 1500:1500")

    def user_of(made, image):
        with made.box(image=image, **LIVE) as box:
            lines = box.sh("/cat /proc/self/status").out.splitlines()
            return next(line for line in lines if line.startswith("Uid:")).split()[2]

    with derived_image(DEBIAN_IMAGE, *changes, files=files, mode=0o4755) as image:
        assert user_of(kind, image) == "1500"
        with weakened(no_new_privileges=False) as loose:
            assert user_of(loose, image) == "0"


def refused(kind, mount, field):
    with pytest.raises(SpecInvalidError) as caught:
        kind.runtime.create(kind.spec(volumes=[mount], **LIVE), timeout_seconds=START_SECONDS)
    assert caught.value.field == f"volumes[v].{field}"


def test_host_paths_are_refused_unless_allowed(kind, sharing, shared):
    mount = VolumeMount("v", "/data", host_path=str(shared))
    refused(kind, mount, "host_path")
    with sharing.box(volumes=[mount], **LIVE) as box:
        assert box.sh("ls /data").out == "part\n"


def test_neighbour_whose_name_begins_the_same_is_not_the_allowed_folder(sharing, shared):
    sibling = Path(f"{shared}-other")
    sibling.mkdir()
    for path in (sibling, shared.parent, Path("/")):
        refused(sharing, VolumeMount("v", "/data", host_path=str(path)), "host_path")
    assert list(sibling.iterdir()) == []


def test_link_out_of_the_allowed_folder_is_refused(sharing, shared):
    (shared / "way").symlink_to(shared.parent / "secret")
    (shared / "up").symlink_to("..")
    for path in ("way", "way/key", "up/secret", "way/new"):
        refused(sharing, VolumeMount("v", "/data", host_path=f"{shared}/{path}"), "host_path")
        refused(sharing, VolumeMount("v", "/data", host_path=str(shared), sub_path=path), "sub_path")
    assert [path.name for path in (shared.parent / "secret").iterdir()] == ["key"]


def test_link_a_sandbox_left_in_a_volume_leads_nowhere(kind, volume):
    claim = VolumeClaim(volume)
    with kind.box(volumes=[VolumeMount("v", "/data", claim=claim)], **LIVE) as box:
        box.sh("ln -s /etc /data/etc; ln -s ../../.. /data/up; mkdir /data/own; ln -s own /data/in")
    for path in ("etc", "up", "up/etc", "etc/new"):
        refused(kind, VolumeMount("v", "/data", claim=claim, sub_path=path), "sub_path")
    with kind.box(volumes=[VolumeMount("v", "/data", claim=claim, sub_path="in")], **LIVE) as box:
        assert box.sh("echo x > /data/file").code == 0


def swap_when_opened(monkeypatch, shared):
    """Have somebody put a link in the place of a folder after it was looked at."""
    real = host_folders.open_host_path

    def swapped(*arguments):
        found = real(*arguments)
        _ = found.path
        shutil.rmtree(shared / "part")
        (shared / "part").symlink_to(shared.parent / "secret")
        return found

    monkeypatch.setattr("runtimes.container_volumes.open_host_path", swapped)
    # What the engine is told is a path: that of before.
    monkeypatch.setattr(host_folders.HostFolder, "path", property(lambda _: str(shared / "part")))


def test_link_that_comes_after_the_look_is_noticed(sharing, shared, monkeypatch):
    swap_when_opened(monkeypatch, shared)
    spec = sharing.spec(volumes=[VolumeMount("v", "/data", host_path=f"{shared}/part")], **LIVE)
    with pytest.raises(SpecInvalidError, match="something else came to be at /data"):
        sharing.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert spec.name not in {handle.name for handle in sharing.runtime.list()}


def test_look_at_what_was_mounted_is_what_notices_it(sharing, shared, monkeypatch):
    swap_when_opened(monkeypatch, shared)
    monkeypatch.setattr(PreparedMounts, "check", lambda *_: None)
    mount = VolumeMount("v", "/data", host_path=f"{shared}/part")
    with sharing.box(volumes=[mount], **LIVE) as box:
        assert box.sh("cat /data/key").out == "the secret"


def test_image_with_a_link_in_a_volumes_place_does_not_move_it(sharing, shared):
    with derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", files={}, links={"data": "/kept"}) as image:
        mount = VolumeMount("v", "/data", host_path=f"{shared}/part")
        with sharing.box(image=image, volumes=[mount], **LIVE) as box:
            box.sh("echo x > /data/file")
            assert box.sh("cat /kept/file").out == "x\n"
    assert (shared / "part" / "file").read_text() == "x\n"


@pytest.mark.parametrize("path", ["/proc", "/proc/sys", "/sys/x", "/dev/shm", "/.sbx", "/.sbx/app"])
def test_volume_covers_nothing_of_the_kernels_or_execds(sharing, shared, path):
    refused(sharing, VolumeMount("v", path, host_path=str(shared)), "mount_path")


def test_volume_of_somebody_else_is_refused_unless_allowed(kind, runtime_folder, volume):
    subprocess.run(["docker", "volume", "create", volume], check=True, capture_output=True, timeout=60)
    mount = VolumeMount("v", "/data", claim=VolumeClaim(volume, delete_with_sandbox=True))
    refused(kind, mount, "claim")
    with docker_kind(runtime_folder, allowed_volumes=("sandmill-test-*",)) as own:
        with own.box(volumes=[mount], **LIVE) as box:
            assert box.sh("echo x > /data/file").code == 0
        assert (
            subprocess.run(["docker", "volume", "inspect", volume], check=False, timeout=60).returncode == 0
        )


def test_volume_of_another_owner_is_another_volume(kind, runtime_folder):
    name = f"test-{uuid.uuid4().hex[:12]}"
    claims = {who: VolumeClaim(name, delete_with_sandbox=True, owner=who) for who in ("one", "two", "")}
    mounts = {who: [VolumeMount("v", "/data", claim=claim)] for who, claim in claims.items()}
    with kind.box(volumes=mounts["one"], **LIVE) as one:
        one.sh("echo secret > /data/file")
        for who, seen in (("one", "secret\n"), ("two", ""), ("", "")):
            with kind.box(volumes=mounts[who], **LIVE) as box:
                assert box.sh("cat /data/file").out == seen
    # What an operator allows has one name for everybody.
    shared = VolumeClaim(name)
    subprocess.run(["docker", "volume", "create", name], check=True, capture_output=True, timeout=60)
    try:
        with docker_kind(runtime_folder, allowed_volumes=("test-*",)) as own:
            for claim in (shared, replace(shared, owner="one"), replace(shared, owner="two")):
                with own.box(volumes=[VolumeMount("v", "/data", claim=claim)], **LIVE) as box:
                    box.sh("echo x >> /data/file")
                    said = box.sh("cat /data/file").out
        assert said == "x\nx\nx\n"
    finally:
        subprocess.run(
            ["docker", "volume", "rm", "--force", name], check=True, capture_output=True, timeout=60
        )


def test_snapshot_is_found_by_no_other_name(kind, monkeypatch):
    name = f"test-{uuid.uuid4().hex[:12]}"
    with kind.box(**LIVE) as box:
        kind.runtime.snapshot(box.handle, name)
    argv = ["docker", "inspect", "--format", "{{.Id}}", f"sandmill-snapshot:{name}"]
    identity = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    try:
        for image in (f"sandmill-snapshot:{name}", identity, identity[7:], identity[7:19]):
            with pytest.raises(ImageNotFoundError):
                kind.runtime.create(kind.spec(image=image), timeout_seconds=START_SECONDS)
        monkeypatch.setattr(container_images, "_refuse_hidden", lambda *_: None)
        with kind.box(image=identity[7:19]) as box:
            box.client.ping()
    finally:
        kind.runtime.remove_snapshot(name)
