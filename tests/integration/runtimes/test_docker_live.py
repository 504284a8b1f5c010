"""Containers of live sandboxes: users, volumes, snapshots, limits, queue, OCI runtimes."""

import itertools
import json
import os
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from requests import Session

from core.errors import (
    BadImageError,
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    RuntimeUnavailableError,
    SpecInvalidError,
    VolumeMissingError,
)
from runtimes.base import (
    ALL_GPUS,
    ENTRYPOINT_KEY,
    Command,
    FileUpload,
    SandboxState,
    VolumeClaim,
    VolumeMount,
)
from runtimes.docker import DockerConfig, DockerRuntime
from runtimes.execd_client import HttpExecutionClient
from tests.support.execd import wait_for
from tests.support.images import (
    BUSYBOX_IMAGE,
    DEBIAN_IMAGE,
    EMPTY_IMAGE,
    derived_image,
    ensure_debian_image,
)
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import START_SECONDS, docker_kind

pytestmark = pytest.mark.docker

LIVE = {"is_sealed": False, "is_writable": True}


@pytest.fixture(scope="module")
def kind(runtime_folder):
    yield from kind_named("docker", runtime_folder)


@pytest.mark.parametrize("pull", [None, "missing"])
def test_start_asks_the_engine_three_things(kind, monkeypatch, pull):
    """Each takes milliseconds: what the image is, to make a container, and to start it. The rest is seen."""
    asked = []
    send = Session.send

    def note(session, request, **settings):
        asked.append(f"{request.method} {request.path_url.rpartition('/')[2].partition('?')[0]}")
        return send(session, request, **settings)

    with kind.box(**LIVE):  # by now its image is known
        pass
    spec = kind.spec(pull=pull, **LIVE)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "send", note)
        handle = kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    kind.runtime.remove(handle)
    assert asked == ["GET json", "POST create", "POST start"]


@pytest.mark.parametrize(("memory_bytes", "pings"), [(48 << 20, 1), (64 << 20, 0)], ids=["little", "enough"])
def test_start_waits_for_an_answer_only_where_memory_may_not_do(kind, monkeypatch, memory_bytes, pings):
    asked = []
    ping = HttpExecutionClient.ping

    def note(client):
        ping(client)
        asked.append(client)

    monkeypatch.setattr(HttpExecutionClient, "ping", note)
    with kind.box(limits={"memory_bytes": memory_bytes}, **LIVE) as box:
        assert len(asked) == pings
        assert box.sh("echo works").out == "works\n"


@pytest.fixture
def shared(tmp_path):
    """A folder of the host that sandboxes may see."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def sharing(runtime_folder, shared, kind):
    """A runtime that lets sandboxes see that folder."""
    del kind
    with docker_kind(runtime_folder, allowed_host_paths=(str(shared),)) as made:
        yield made


@pytest.fixture
def volume():
    """A name for a volume, which is removed afterwards."""
    name = f"sandmill-test-{uuid.uuid4().hex[:12]}"
    yield name
    with suppress(subprocess.CalledProcessError):
        docker_output("volume", "rm", "--force", name)


def docker_output(*arguments):
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def volume_names():
    return docker_output("volume", "ls", "--quiet").split()


def claimed(name, path="/data", **changes):
    """A mount of a named volume."""
    claim = {key: changes.pop(key) for key in ("create_if_missing", "delete_with_sandbox") if key in changes}
    return VolumeMount("v", path, claim=VolumeClaim(name, **claim), **changes)


def test_root_of_the_image_is_root_and_can_do_what_package_managers_do(kind):
    ensure_debian_image()
    with kind.box(image=DEBIAN_IMAGE, **LIVE) as box:
        assert box.sh("id -u").out == "0\n"
        said = box.sh(
            "mkdir -p /opt/new && echo x > /opt/new/file && chown 7:7 /opt/new/file && chmod 600 /opt/new/file && "
            "cat /opt/new/file && stat -c %u:%g /opt/new/file && echo y > /etc/made && cat /etc/made"
        )
        assert said.out == "x\n7:7\ny\n"
        fields = dict(
            line.split(":\t", 1) for line in box.sh("cat /proc/self/status").out.splitlines() if ":\t" in line
        )
        assert int(fields["CapBnd"], 16) == 0b11101011  # CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID
        assert fields["NoNewPrivs"].strip() == "1"
        assert fields["Seccomp"].strip() == "2"


def test_user_and_groups_of_the_image_are_kept(kind):
    files = {
        "etc/passwd": b"root:x:0:0::/root:/bin/sh\napp:x:1500:1600::/home/app:/bin/sh\n",
        "etc/group": b"app:x:1600:\nextra:x:1700:app\n",
    }
    with (
        derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", "USER app", files=files) as image,
        kind.box(image=image, workdir="/made/for/it", **LIVE) as box,
    ):
        assert (
            box.sh("id -u; id -g; id -G; echo $HOME; pwd").out
            == "1500\n1600\n1600 1700\n/home/app\n/made/for/it\n"
        )
        assert box.sh("echo x > /made/for/it/file && echo y > /tmp/file && cat /tmp/file").out == "y\n"
        assert box.sh("echo x > /kept/file").code != 0


def test_image_without_anything_has_a_place_for_files(kind):
    with kind.box(image=EMPTY_IMAGE, **LIVE) as box:
        box.client.upload([FileUpload("/tmp/file", b"x")])
        assert box.client.file_info("/tmp").mode & 0o777 == 0o777


def test_environment_hostname_and_entrypoint_of_the_image(kind, runtime_folder):
    changes = ("ENV PATH=/bin", 'ENTRYPOINT ["sh", "-c"]', 'CMD ["echo of the image > /tmp/said; sleep 60"]')
    with (
        derived_image(BUSYBOX_IMAGE, *changes, files={}) as image,
        docker_kind(runtime_folder, sandbox_env={"FROM_NODE": "1", "BOTH": "node"}) as own,
        own.box(image=image, entrypoint="image", hostname="my-host", env={"BOTH": "spec"}, **LIVE) as box,
    ):
        wait_for(lambda: box.sh("cat /tmp/said").out == "of the image\n", seconds=10)
        assert box.sh("hostname; echo $FROM_NODE $BOTH").out == "my-host\n1 spec\n"


def test_limits_hold_in_a_writable_sandbox(kind):
    limits = {"pids": 20, "memory_bytes": 64 << 20, "open_files": 99}
    with kind.box(limits=limits, **LIVE) as box:
        facts = json.loads(docker_output("inspect", box.handle.ref))[0]["HostConfig"]
        assert (facts["PidsLimit"], facts["Memory"], facts["MemorySwap"]) == (20, 64 << 20, 64 << 20)
        assert box.sh("ulimit -n").out == "99\n"
        assert "ork" in box.sh("for i in $(seq 40); do sleep 5 & done 2>&1; wait").out


def test_more_open_files_than_the_engine_can_give_are_as_many_as_it_can(kind):
    with kind.box(limits={"open_files": 1_048_576}, **LIVE) as box:
        assert 1024 <= int(box.sh("ulimit -n").out) <= 1_048_576


def test_sandbox_that_writes_too_much_is_ended_and_says_why(kind):
    limits = {"disk_bytes": 8 << 20}
    with kind.box(limits=limits, **LIVE) as box:
        # Each smaller than the limit, which no single file can pass.
        with suppress(ExecdUnreachableError):
            box.sh("for i in 1 2 3 4; do head -c 4000000 /dev/zero > /tmp/f$i; done; sleep 30")
        wait_for(lambda: kind.runtime.state(box.handle).phase == "ended", seconds=20)
        state = kind.runtime.state(box.handle)
        assert state == SandboxState(
            "ended", 137, f"disk limit: it has written more than its {8 << 20} bytes"
        )


def test_disk_of_a_sandbox_that_another_process_made_is_watched(kind, runtime_folder):
    with kind.box(limits={"disk_bytes": 8 << 20}, **LIVE) as box, docker_kind(runtime_folder) as other:
        kind.runtime._disks.drop(box.handle.ref)
        assert box.handle in other.runtime.list()
        with suppress(ExecdUnreachableError):
            box.sh("for i in 1 2 3 4; do head -c 4000000 /dev/zero > /tmp/f$i; done; sleep 30")
        wait_for(lambda: "disk limit" in other.runtime.state(box.handle).message, seconds=20)


def test_disk_of_a_sandbox_of_another_node_is_left_to_that_node(kind, tmp_path):
    """Who has ended it is who can say why."""
    with kind.box(limits={"disk_bytes": 8 << 20}, **LIVE) as box, docker_kind(tmp_path) as other:
        assert box.handle.name in {handle.name for handle in other.runtime.list()}
        assert other.runtime._disks is None


def test_use_of_a_writable_sandbox_is_told(kind):
    with kind.box(**LIVE) as box:
        box.sh("head -c 5000000 /dev/urandom > /tmp/file; sync")
        wait_for(lambda: (kind.runtime.stats(box.handle).disk_bytes or 0) >= 5_000_000, seconds=20)
        assert kind.runtime.stats(box.handle).disk_limit_bytes == 32 << 20
        assert kind.runtime.stats(box.handle).processes == 1


def test_snapshot_keeps_what_the_image_says_and_no_secret(kind):
    name = f"test-{uuid.uuid4().hex[:12]}"
    changes = ("ENV PATH=/bin", "ENV OF_IMAGE=1", "USER 1500:1600", 'ENTRYPOINT ["sh"]', "WORKDIR /kept")
    with (
        derived_image(BUSYBOX_IMAGE, *changes, files={}) as image,
        kind.box(image=image, env={"SECRET": "hunter2"}, **LIVE) as box,
    ):
        token = kind.runtime._tokens.of(box.handle.name)
        box.client.upload([FileUpload("/tmp/file", b"x")])
        kind.runtime.snapshot(box.handle, name)
    try:
        described = docker_output("inspect", f"sandmill-snapshot:{name}")
        told = described + docker_output("history", "--no-trunc", f"sandmill-snapshot:{name}")
        assert "hunter2" not in told
        assert token not in told
        config = json.loads(described)[0]["Config"]
        assert (config["User"], config["Entrypoint"], config["WorkingDir"]) == ("1500:1600", ["sh"], "/kept")
        # The image below is gone by now, by its name.
        with kind.box(image=f"snapshot:{name}", **LIVE) as other:
            assert other.sh("id -u; pwd; echo $OF_IMAGE$SECRET; cat /tmp/file").out == "1500\n/kept\n1\nx"
            chain = f"{name}-2"
            kind.runtime.snapshot(other.handle, chain)
            with kind.box(image=f"snapshot:{chain}", **LIVE) as third:
                assert third.sh("cat /tmp/file").out == "x"
            kind.runtime.remove_snapshot(chain)
    finally:
        kind.runtime.remove_snapshot(name)
    assert docker_output("images", "--quiet", "--filter", "label=sandmill.unfinished-snapshot") == ""


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 129, "-x", "a:b"])
def test_bad_name_of_a_snapshot_is_refused(kind, name):
    with kind.box(**LIVE) as box, pytest.raises(SpecInvalidError) as caught:
        kind.runtime.snapshot(box.handle, name)
    assert caught.value.field == "name"


def test_named_volume_outlives_sandboxes_and_is_shared(kind, volume):
    with kind.box(volumes=[claimed(volume)], **LIVE) as box:
        box.sh("echo kept > /data/file")
    with kind.box(volumes=[claimed(volume, read_only=True)], **LIVE) as box:
        assert box.sh("cat /data/file").out == "kept\n"
        assert box.sh("echo x > /data/file").code != 0
    assert volume in volume_names()


def test_a_volume_in_the_folder_of_another_is_seen_whatever_their_order(kind, volume):
    """B-073: a parent mounted later would hide its child."""
    paths = ("/w", "/w/p", "/w/p/q")
    for order in itertools.permutations(range(3)):
        mounts = [
            VolumeMount(f"v{n}", paths[n], claim=VolumeClaim(f"{volume}-{n}", delete_with_sandbox=True))
            for n in order
        ]
        with kind.box(volumes=mounts, **LIVE) as box:
            said = box.sh(
                "for d in /w /w/p /w/p/q; do echo $d > $d/own; done; cat /w/own /w/p/own /w/p/q/own; mount"
            )
            assert said.out.splitlines()[:3] == list(paths)
            assert [line.split()[2] for line in said.out.splitlines() if " on /w" in line] == list(paths)


def test_volume_made_for_a_sandbox_goes_with_it(kind, volume):
    with kind.box(volumes=[claimed(volume, delete_with_sandbox=True)], **LIVE):
        assert volume in volume_names()
    assert volume not in volume_names()


def test_volume_that_was_there_before_stays(kind, volume):
    with kind.box(volumes=[claimed(volume)], **LIVE):
        pass
    with kind.box(volumes=[claimed(volume, delete_with_sandbox=True)], **LIVE):
        pass
    assert volume in volume_names()


def test_volume_goes_with_a_sandbox_that_another_process_made(kind, runtime_folder, volume):
    with (
        kind.box(volumes=[claimed(volume, delete_with_sandbox=True)], **LIVE) as box,
        docker_kind(runtime_folder) as other,
    ):
        other.runtime.remove(box.handle)
        assert volume not in volume_names()


def test_volume_of_a_sandbox_that_did_not_start_is_gone(kind, volume):
    spec = kind.spec(volumes=[claimed(volume, delete_with_sandbox=True)], image=BUSYBOX_IMAGE, **LIVE)
    with pytest.raises(SpecInvalidError):
        kind.runtime.create(
            replace(spec, oci_runtime=None, limits=replace(spec.limits, gpu=1)), timeout_seconds=60
        )
    assert volume not in volume_names()


def test_volume_whose_sandbox_was_lost_is_collected(kind, volume):
    node = uuid.uuid4().hex
    spec = kind.spec(
        volumes=[claimed(volume, delete_with_sandbox=True)], labels={"sandmill.node": node}, **LIVE
    )
    handle = kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert kind.runtime.collect(node, ()) == (0, 0)
    docker_output("rm", "--force", handle.ref)
    assert kind.runtime.collect("another node", ()) == (0, 0)
    assert kind.runtime.collect(node, (spec.name,)) == (0, 0)
    assert kind.runtime.collect(node, ()) == (1, 0)
    assert volume not in volume_names()


def test_missing_volume_that_is_not_to_be_made_is_named(kind, volume):
    theirs = VolumeMount("v", "/data", claim=VolumeClaim(volume, create_if_missing=False, owner="somebody"))
    for wanted in (claimed(volume, create_if_missing=False), theirs):
        with pytest.raises(VolumeMissingError) as caught:
            kind.runtime.create(kind.spec(volumes=[wanted], **LIVE), timeout_seconds=60)
        assert caught.value.field == "volumes[v].claim"
        # By the name that was asked for, not by the engine's.
        assert f"there is no volume {volume!r} on this node" in caught.value.message
    assert volume not in volume_names()


def test_volume_is_shown_to_the_user_of_the_image(kind, volume):
    with (
        derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", "USER 1500:1600", files={}) as image,
        kind.box(
            image=image, volumes=[claimed(volume), claimed(volume, "/part", sub_path="a/b")][:1], **LIVE
        ) as box,
    ):
        assert box.sh("echo x > /data/file && cat /data/file").out == "x\n"


def test_part_of_a_volume_is_made_and_shown(kind, volume):
    with kind.box(volumes=[claimed(volume, sub_path="a/b")], **LIVE) as box:
        box.sh("echo x > /data/file")
    with kind.box(volumes=[claimed(volume)], **LIVE) as box:
        assert box.sh("cat /data/a/b/file").out == "x\n"


def test_folder_and_file_of_the_host_are_shown(sharing, shared):
    (shared / "file").write_text("of the host\n")
    mounts = [
        VolumeMount("f", "/file", host_path=f"{shared}/file", read_only=True),
        VolumeMount("d", "/data", host_path=f"{shared}/new/folder"),
        VolumeMount("s", "/part", host_path=str(shared), sub_path="part"),
    ]
    with sharing.box(volumes=mounts, **LIVE) as box:
        assert box.sh("cat /file; echo x > /data/made; echo y > /part/made").out == "of the host\n"
        assert box.sh("echo z > /file").code != 0
    assert (shared / "new/folder/made").read_text() == "x\n"
    assert (shared / "part/made").read_text() == "y\n"


def test_gpus_without_a_driver_are_told_by_name(kind):
    for count in (1, ALL_GPUS):
        spec = kind.spec(limits={"gpu": count}, **LIVE)
        with pytest.raises(SpecInvalidError, match="driver for GPUs") as caught:
            kind.runtime.create(spec, timeout_seconds=START_SECONDS)
        assert caught.value.field == "resources.gpu"
        assert spec.name not in {handle.name for handle in kind.runtime.list()}


@pytest.mark.parametrize("name", ["kata-runtime", "firecracker", "no-such-runtime"])
def test_oci_runtime_the_engine_has_not_got_is_told_by_name(kind, runtime_folder, name):
    with pytest.raises(SpecInvalidError, match=f"{name}.*runc") as caught:
        kind.runtime.create(kind.spec(oci_runtime=name), timeout_seconds=START_SECONDS)
    assert caught.value.field == "oci_runtime"
    folders = {"bundle_dir": runtime_folder / "bundles", "state_dir": runtime_folder / "docker"}
    with pytest.raises(RuntimeUnavailableError, match=name):
        DockerRuntime(DockerConfig(**folders, oci_runtime=name)).check()


def test_what_this_engine_can_do_is_told(runtime_folder):
    folders = {"bundle_dir": runtime_folder / "bundles", "state_dir": runtime_folder / "docker"}
    can = DockerRuntime(DockerConfig(**folders, allowed_host_paths=("/srv",))).capabilities()
    assert set(can.oci_runtimes) == json.loads(docker_output("info", "--format", "{{json .Runtimes}}")).keys()
    assert (can.host_paths, can.makes_snapshots) == (("/srv",), True)
    with pytest.raises(DaemonError):
        DockerRuntime(DockerConfig(**folders, base_url="unix:///nowhere.sock")).capabilities()


def has_gvisor():
    return "runsc" in json.loads(docker_output("info", "--format", "{{json .Runtimes}}"))


@pytest.fixture
def gvisor(kind):
    """The docker runtime, with gVisor in its engine."""
    if not has_gvisor():
        problem = 'the engine has no runtime runsc: see "gVisor" in docs/containers.md'
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    return kind


def test_gvisor_runs_sandboxes_with_a_kernel_of_their_own(gvisor):
    with gvisor.box(oci_runtime="runsc") as box:
        assert box.sh("uname -r").out.startswith("4.4.0")
        assert box.sh("id -u").out != "0\n"
        assert box.sh("echo x > /kept/file").code != 0
        box.client.upload([FileUpload("/tmp/file", b"x")])
        assert box.sh("cat /tmp/file").out == "x"
        stats = gvisor.runtime.stats(box.handle)
        assert (stats.memory_peak_bytes or 0) > 1 << 20


def test_gvisor_runs_live_sandboxes_in_every_way(gvisor):
    argv = ("sh", "-c", "echo begun; exec sleep 60")
    name = f"test-{uuid.uuid4().hex[:12]}"
    with gvisor.box(oci_runtime="runsc", entrypoint=argv, **LIVE) as box:
        assert box.sh("id -u; echo x > /kept/made; cat /kept/made").out == "0\nx\n"
        wait_for(
            lambda: box.client.background_output(Command(argv=argv), key=ENTRYPOINT_KEY) == b"begun\n",
            seconds=10,
        )
        # A port of the sandbox is reached from outside, which its own network stack would not let happen.
        box.sh("nc -l -p 8000 -e echo pong & sleep 1")
        with closing(gvisor.runtime.connect(box.handle, 8000, timeout_seconds=5)) as stream:
            stream.settimeout(5)
            assert stream.recv(10) == b"pong\n"
        gvisor.runtime.pause(box.handle)
        assert gvisor.runtime.state(box.handle) == SandboxState("paused")
        gvisor.runtime.resume(box.handle)
        box.client.ping()
        gvisor.runtime.snapshot(box.handle, name)
    try:
        with gvisor.box(oci_runtime="runsc", image=f"snapshot:{name}", **LIVE) as other:
            assert other.sh("cat /kept/made").out == "x\n"
    finally:
        gvisor.runtime.remove_snapshot(name)


def test_gvisor_holds_to_the_memory_limit(gvisor):
    with gvisor.box(oci_runtime="runsc", limits={"memory_bytes": 128 << 20}, **LIVE) as box:
        with suppress(ExecdUnreachableError):
            box.python("s = bytearray(400 << 20)\nfor i in range(0, len(s), 4096): s[i] = 1")
        wait_for(lambda: gvisor.runtime.state(box.handle).phase == "ended", seconds=20)
        assert "memory" in gvisor.runtime.state(box.handle).message


def test_gvisor_takes_no_image_with_something_in_execds_place(gvisor):
    with (
        derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", files={}, links={".sbx": "/kept"}) as image,
        pytest.raises(BadImageError, match="execd's place"),
    ):
        gvisor.runtime.create(gvisor.spec(image=image, oci_runtime="runsc"), timeout_seconds=START_SECONDS)


def test_beginning_of_an_id_is_no_image(kind):
    identity = docker_output("inspect", "--format", "{{.Id}}", BUSYBOX_IMAGE).strip()
    for name in (identity[7:19], identity[:19], identity[7:8]):
        with pytest.raises(ImageNotFoundError):
            kind.runtime.create(kind.spec(image=name), timeout_seconds=START_SECONDS)
    with kind.box(image=identity) as box:
        box.client.ping()


def test_creates_are_bounded_and_wait_in_line(kind, runtime_folder):
    told = []
    with docker_kind(runtime_folder, parallel_creates=1) as own, ThreadPoolExecutor(4) as pool:

        def one(_):
            with own.box() as box:
                return box.handle.name

        original = own.runtime.create
        own.runtime.create = lambda spec, **options: original(spec, **options, on_progress=told.append)
        assert len(set(pool.map(one, range(4)))) == 4
    assert any("waiting for its turn" in text for text in told)


def test_turn_that_does_not_come_is_told(kind, runtime_folder):
    with docker_kind(runtime_folder, parallel_creates=1) as own:
        own.runtime.check()
        holding, let_go = threading.Event(), threading.Event()
        from runtimes.deadline import Deadline  # noqa: PLC0415

        def hold():
            with own.runtime._turns.taken("a test", Deadline(30), lambda _: None):
                holding.set()
                let_go.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        holding.wait(10)
        try:
            with pytest.raises(
                CreateTimeoutError, match=r"did not get its turn within 0\.3 s: 0 were before it"
            ):
                own.runtime.create(own.spec(), timeout_seconds=0.3)
        finally:
            let_go.set()
            holder.join()


def test_container_that_was_removed_or_killed_from_outside_is_told(kind):
    with kind.box(**LIVE) as box:
        docker_output("kill", box.handle.ref)
        state = kind.runtime.state(box.handle)
        assert (state.phase, state.exit_code) == ("ended", 137)
        assert "killed from outside" in state.message
        docker_output("rm", box.handle.ref)
        assert kind.runtime.state(box.handle) == SandboxState("gone")
        assert box.handle not in kind.runtime.list()


def test_sandbox_out_of_memory_says_so(kind):
    with kind.box(limits={"memory_bytes": 64 << 20}, **LIVE) as box:
        with suppress(ExecdUnreachableError):
            box.python("s = bytearray(200 << 20)\nfor i in range(0, len(s), 4096): s[i] = 1")
        docker_output("kill", box.handle.ref)
        assert "memory" in kind.runtime.state(box.handle).message


def test_what_was_made_and_never_started_is_listed_and_removed(kind):
    with kind.box(**LIVE) as box:
        facts = json.loads(docker_output("inspect", box.handle.ref))[0]
    name = f"sm-test-{uuid.uuid4().hex[:12]}"
    docker_output("create", "--name", name, "--label", f"sandmill.sandbox={name}", facts["Image"], "sh")
    handle = next(each for each in kind.runtime.list() if each.name == name)
    assert kind.runtime.state(handle) == SandboxState("starting")
    kind.runtime.remove(handle)
    assert kind.runtime.state(handle) == SandboxState("gone")


def test_image_that_was_removed_meanwhile_is_told(kind):
    with derived_image(BUSYBOX_IMAGE, f"LABEL of={uuid.uuid4().hex}", files={}) as image:
        real = kind.runtime._images.look_up

        def look_up(*arguments, **options):
            found = real(*arguments, **options)
            docker_output("rmi", "--force", image)
            return found

        kind.runtime._images.look_up = look_up
        try:
            with pytest.raises(ImageNotFoundError, match="was removed from the engine"):
                kind.runtime.create(kind.spec(image=image), timeout_seconds=START_SECONDS)
        finally:
            kind.runtime._images.look_up = real


def test_limitations_are_what_the_engine_has_not(kind):
    info = json.loads(docker_output("info", "--format", "{{json .}}"))
    told = " ".join(kind.runtime.limitations())
    assert ("userns-remap" in told) == (not any("userns" in option for option in info["SecurityOptions"]))
    assert ("AppArmor" in told) == (not any("apparmor" in option for option in info["SecurityOptions"]))
