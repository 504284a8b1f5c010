"""Local sandboxes of stored images, and what becomes of files: pause, snapshot, fork, disks, statistics."""

import hashlib
import io
import json
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import (
    ExecdUnreachableError,
    ImageNotFoundError,
    NotSupportedError,
    SpecInvalidError,
)
from runtimes.local.config import LocalConfig
from runtimes.local.images import ImageStore
from runtimes.local.images.platforms import Platform
from runtimes.local.runtime import LocalRuntime
from tests.support.execd import names_in, wait_for
from tests.support.outside import background
from tests.support.sandboxes import START_SECONDS, Box, Kind, is_root, local_kind, make_spec

as_root = pytest.mark.skipif(not is_root(), reason="needs root")

BUSYBOX = next((path for path in (Path("/bin/busybox"), Path("/usr/bin/busybox")) if path.exists()), None)


def tar_of(files):
    """An archive: path to bytes, None for a folder, a text for a link; values may be (content, mode, uid)."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for path, value in files.items():
            content, mode, uid = value if isinstance(value, tuple) else (value, 0o755, 0)
            entry = tarfile.TarInfo(path)
            entry.mode, entry.uid, entry.gid = mode, uid, uid
            if content is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return memory.getvalue()


ROOT_FILES = {
    "bin": None,
    "etc": None,
    "etc/passwd": (b"root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234::/srv:/bin/sh\n", 0o644, 0),
    "etc/hosts": (b"10.0.0.1 leaked\n", 0o644, 0),
    "root": None,
    "srv": (None, 0o755, 1234),
    "srv/owned": (b"by app\n", 0o600, 1234),
    "secret": (b"of root\n", 0o600, 0),
    "evil": "/proc/1/root/etc",
}


@pytest.fixture(scope="module")
def busybox_tar(tmp_path_factory):
    if BUSYBOX is None:
        pytest.fail("busybox is missing: install busybox-static")
    links = {
        f"bin/{name}": "busybox" for name in ("sh", "cat", "id", "ls", "echo", "env", "sleep", "rm", "stat")
    }
    links |= {
        f"bin/{name}": "busybox" for name in ("mkdir", "touch", "dd", "true", "df", "wc", "chmod", "ln", "mv")
    }
    path = tmp_path_factory.mktemp("images") / "box.tar"
    path.write_bytes(tar_of({**ROOT_FILES, "bin/busybox": BUSYBOX.read_bytes(), **links}))
    return path


@pytest.fixture
def kind(tmp_path, runtime_folder):
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path / "state", bundle_dir=runtime_folder / "bundles"))
    yield Kind(runtime, "host")
    runtime.close()


@pytest.fixture
def stored(kind, busybox_tar):
    """The runtime with an image `box`."""
    kind.runtime.image_store.import_archive(busybox_tar, name="box")
    return replace(kind, image="box")


def box_of(kind, handle):
    return Box(kind.runtime, handle, kind.runtime.executions(handle))


def create(kind, **changes):
    return box_of(kind, kind.runtime.create(kind.spec(**changes), timeout_seconds=START_SECONDS))


def test_a_stored_image_is_all_that_its_sandbox_sees(stored):
    with stored.box() as box:
        names = set(box.sh("ls -A /").out.split())
        assert names >= {"bin", "etc", "srv", "proc", "dev", "tmp", ".sbx"}
        assert not names & {"usr", "sys", "home", "work"}
        assert box.sh("cat /etc/hosts").out.startswith("127.0.0.1 localhost")
        assert box.sh("echo $HOME $PWD; id -u").out == f"/root /\n{0 if is_root() else 1000}\n"


def test_root_of_an_image_has_no_right_over_the_host_or_the_sandbox(stored):
    with stored.box() as box:
        status = box.sh("cat /proc/self/status").out
        assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
        assert "NoNewPrivs:\t1" in status
        # Another user's, and no right to override; without root on the host all files are one user's.
        assert box.sh("cat /srv/owned").code == (1 if is_root() else 0)
        assert box.sh("cat /secret; rm /secret; ls /secret 2>/dev/null").out == "of root\n"
        assert box.sh("cat /evil/passwd /evil/shadow 2>/dev/null | wc -l").out.strip() in ("0", "2")


@as_root
def test_what_a_sandbox_changes_stays_its_own(stored):
    with stored.box() as one, stored.box() as two:
        one.sh("echo changed > /secret; rm -r /etc/passwd /root; mkdir /new; chmod 700 /bin")
        assert (
            two.sh("cat /secret; ls -d /root /etc/passwd; ls /new 2>/dev/null").out
            == "of root\n/etc/passwd\n/root\n"
        )
    with stored.box() as three:
        assert three.sh("cat /secret").out == "of root\n"
    layer = stored.runtime.image_store.find("box").layers[0]
    assert (layer / "secret").read_text() == "of root\n"
    assert (layer / "srv/owned").stat().st_uid == 1234


@as_root
@pytest.mark.parametrize(
    ("user", "said"), [("app", "1234 /srv"), ("1234:7", "1234 /srv"), ("", "0 /root"), ("9", "9 /")]
)
def test_an_image_runs_as_its_user(kind, busybox_tar, user, said):
    import_with_config(kind, busybox_tar, User=user)
    with replace(kind, image="box").box() as box:
        assert box.sh("echo $(id -u) $HOME").out.strip() == said
        if user == "app":
            assert box.sh("cat owned", cwd="/srv").out == "by app\n"
            assert box.sh("cat /secret").code == 1


def import_with_config(kind, layer, **config):
    """Store an image `box` of one layer as `docker save` writes it, with this config."""
    data = layer.read_bytes()
    document = {
        "architecture": Platform.of_this_machine().architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
    }
    names = {"config": f"{'c' * 64}.json", "layer": f"{'d' * 64}/layer.tar"}
    manifest = [{"Config": names["config"], "RepoTags": ["box:latest"], "Layers": [names["layer"]]}]
    files = {names["config"]: document, "manifest.json": manifest}
    saved = {name: (json.dumps(value).encode(), 0o644, 0) for name, value in files.items()}
    path = kind.runtime._config.state_dir.parent / "saved.tar"
    path.write_bytes(tar_of({**saved, names["layer"]: (data, 0o644, 0)}))
    kind.runtime.image_store.import_archive(path)


@as_root
def test_environment_and_workdir_of_an_image_are_honoured_and_steer_nothing(kind, busybox_tar):
    env = ["FROM_IMAGE=1", "LD_PRELOAD=/no.so", "EXECD_ACCESS_TOKEN=guess", "BOTH=image"]
    import_with_config(kind, busybox_tar, Env=env, WorkingDir="/srv")
    with replace(kind, image="box").box(env={"BOTH": "job"}) as box:
        assert box.sh("echo $FROM_IMAGE $BOTH $PWD $LD_PRELOAD").out == "1 job /srv /no.so\n"


@as_root
def test_an_image_of_nothing_still_has_execd(kind, tmp_path):
    path = tmp_path / "empty.tar"
    path.write_bytes(tar_of({"a": (b"1", 0o644, 0)}))
    kind.runtime.image_store.import_archive(path, name="empty")
    with replace(kind, image="empty").box(workdir="/w/deep") as box:
        assert box.client.file_info("/w/deep").type == "directory"
        assert "bash" in (box.sh("true").result.error or "")


def test_links_of_an_image_lead_to_places_inside(kind, tmp_path):
    files = {"etc": "/../../../etc2", "tmp": "/w", "w": None, "etc2": None}
    path = tmp_path / "links.tar"
    path.write_bytes(tar_of(files))
    kind.runtime.image_store.import_archive(path, name="links")
    outside = names_in(Path("/etc"))
    with replace(kind, image="links").box() as box:
        assert box.client.file_info("/etc2/hosts").type == "file"
    assert names_in(Path("/etc")) == outside
    assert not Path("/etc2").exists()


def test_an_image_that_is_not_there_names_those_that_are(stored):
    with pytest.raises(ImageNotFoundError, match=r"box.*'host'"):
        stored.runtime.create(stored.spec(image="nothing:1"), timeout_seconds=5)
    with pytest.raises(ImageNotFoundError, match="host"):
        stored.runtime.create(stored.spec(image="UPPER CASE"), timeout_seconds=5)


def test_layers_of_a_running_sandbox_outlive_their_image(stored):
    store: ImageStore = stored.runtime.image_store
    with stored.box() as box:
        store.remove("box")
        assert box.sh("ls /srv").out == "owned\n"
    store.collect()
    assert list((stored.runtime._config.state_dir / "images" / "layers").iterdir()) == []


def test_paused_processes_stand_still_and_go_on(kind):
    with kind.box() as box, background(box, "while :; do echo x; sleep 0.01; done", until=b"x\n") as running:
        kind.runtime.pause(box.handle)
        kind.runtime.pause(box.handle)
        seen = settled(running)
        threading.Event().wait(0.3)
        assert len(running.seen) == seen
        kind.runtime.resume(box.handle)
        kind.runtime.resume(box.handle)
        wait_for(lambda: len(running.seen) > seen)


def settled(running):
    """How much was said, once what was on its way has come."""
    before = -1
    while before != len(running.seen):
        before = len(running.seen)
        threading.Event().wait(0.2)
    return before


def test_a_paused_sandbox_can_be_removed(kind):
    with kind.box() as box:
        kind.runtime.pause(box.handle)
    assert kind.runtime.list() == []


def test_a_sandbox_that_is_gone_can_be_neither_paused_nor_resumed(kind):
    with kind.box() as box:
        pass
    for change in (kind.runtime.pause, kind.runtime.resume):
        with pytest.raises(ExecdUnreachableError):
            change(box.handle)


def test_statistics_tell_use_and_limits(kind):
    with kind.box() as box:
        box.sh("dd if=/dev/zero of=/tmp/x bs=1M count=8")
        stats = kind.runtime.stats(box.handle)
    if is_root():
        assert stats.disk_limit_bytes == 32 << 20
        assert 8 << 20 <= stats.disk_bytes <= 9 << 20
        assert stats.memory_bytes >= 8 << 20
        assert stats.memory_peak_bytes >= stats.memory_bytes
        assert 1 <= stats.processes <= 3
        assert stats.oom_kills == 0
        assert stats.cpu_seconds > 0


@as_root
@pytest.mark.parametrize("image", ["host", "box"])
def test_a_snapshot_starts_others_with_the_files_of_that_moment(stored, image):
    runtime = stored.runtime
    with stored.box(image=image) as box, background(box, "echo up; sleep 1000", until=b"up\n"):
        box.sh(
            "mkdir -p /tmp/d && echo one > /tmp/d/f && ln -s f /tmp/d/l && ln /tmp/d/f /tmp/d/h && chmod 640 /tmp/d/f"
        )
        if image == "box":
            box.sh("rm /etc/passwd; rm -r /root; mkdir /root; touch /root/new")
        runtime.snapshot(box.handle, "first")
        box.sh("echo two > /tmp/d/f")
        assert box.sh("cat /tmp/d/f").out == "two\n"
    assert runtime.snapshots() == ["first"]
    with stored.box(image="snapshot:first") as new:
        assert new.sh("cat /tmp/d/f /tmp/d/l").out == "one\none\n"
        assert new.sh("stat -c '%a %h' /tmp/d/f").out == "640 2\n"
        assert new.sh("cat /tmp/d/h").out == "one\n"
        if image == "box":
            assert new.sh("ls /root; ls /etc/passwd").out == "new\n"
    with stored.box(image="snapshot:first") as again:
        assert again.sh("cat /tmp/d/f").out == "one\n"
        runtime.snapshot(again.handle, "second")
    with stored.box(image="snapshot:second") as grandchild:
        assert grandchild.sh("cat /tmp/d/f").out == "one\n"
    for name in ("first", "second", "second"):
        runtime.remove_snapshot(name)
    assert runtime.snapshots() == []
    assert not [holder for holder in runtime.image_store.holders() if "snapshot" in holder]


@as_root
def test_a_snapshot_keeps_the_image_below_it(stored):
    store = stored.runtime.image_store
    with stored.box() as box:
        stored.runtime.snapshot(box.handle, "kept")
    store.remove("box")
    layers = list((stored.runtime._config.state_dir / "images" / "layers").iterdir())
    assert layers
    with stored.box(image="snapshot:kept") as again:
        stored.runtime.snapshot(again.handle, "again")
        assert again.sh("ls /srv").out == "owned\n"
    stored.runtime.remove_snapshot("kept")
    with stored.box(image="snapshot:again") as last:
        assert last.sh("ls /srv").out == "owned\n"
    stored.runtime.remove_snapshot("again")
    store.collect()
    assert list((stored.runtime._config.state_dir / "images" / "layers").iterdir()) == []


@as_root
def test_names_of_snapshots_are_checked(kind):
    with kind.box() as box:
        kind.runtime.snapshot(box.handle, "taken")
        for name in ("taken", "../x", "", "A", "a/b", ".x"):
            with pytest.raises(SpecInvalidError, match=r"name"):
                kind.runtime.snapshot(box.handle, name)
    with pytest.raises(ImageNotFoundError, match="taken"):
        kind.runtime.create(kind.spec(image="snapshot:other"), timeout_seconds=5)
    kind.runtime.remove_snapshot("taken")


@as_root
@pytest.mark.parametrize("image", ["host", "box"])
@pytest.mark.parametrize("disk", ["memory", "file"])
def test_a_fork_and_its_original_go_separate_ways(tmp_path, runtime_folder, busybox_tar, image, disk):
    with local_kind(tmp_path, disk=disk) as kind:
        kind.runtime.image_store.import_archive(busybox_tar, name="box")
        first = create(kind, image=image)
        first.sh("echo base > /tmp/f; mkdir /tmp/d; echo deep > /tmp/d/g; chmod 600 /tmp/f")
        one, two = kind.runtime.fork(first.handle, kind.spec(), timeout_seconds=START_SECONDS)
        boxes = [box_of(kind, one), box_of(kind, two)]
        assert [box.sh("cat /tmp/f /tmp/d/g").out for box in boxes] == ["base\ndeep\n"] * 2
        boxes[0].sh("echo one > /tmp/f; rm -r /tmp/d")
        boxes[1].sh("echo two >> /tmp/f")
        assert boxes[0].sh("cat /tmp/f; ls /tmp/d 2>/dev/null").out == "one\n"
        assert boxes[1].sh("cat /tmp/f; ls /tmp/d").out == "base\ntwo\ng\n"
        two, three = kind.runtime.fork(two, kind.spec(), timeout_seconds=START_SECONDS)
        kind.runtime.remove(one)
        kind.runtime.remove(two)
        last = box_of(kind, three)
        assert last.sh("cat /tmp/f; ls /tmp/d; id -u; touch /tmp/mine && ls /tmp/mine").out == (
            f"base\ntwo\ng\n{0 if image == 'box' else 1000}\n/tmp/mine\n"
        )
        kind.runtime.snapshot(three, "deep")
        kind.runtime.remove(three)
        again = create(kind, image="snapshot:deep")
        assert again.sh("cat /tmp/f").out == "base\ntwo\n"
        kind.runtime.remove(again.handle)
        kind.runtime.remove_snapshot("deep")
        assert kind.runtime.list() == []
        if disk == "file":
            assert list((kind.runtime._config.state_dir / "disks").iterdir()) == []


@as_root
def test_a_fork_that_cannot_be_planned_leaves_the_original_as_it_is(kind):
    with kind.box() as box, background(box, "echo up; sleep 1000", until=b"up\n"):
        for spec in (kind.spec(workdir="/usr/x"), make_spec(name=box.handle.name)):
            with pytest.raises(SpecInvalidError):
                kind.runtime.fork(box.handle, spec, timeout_seconds=5)
        box.client.ping()


@as_root
def test_a_disk_in_a_file_has_its_limit_and_its_space_comes_back(tmp_path, runtime_folder):
    with local_kind(tmp_path, disk="file") as kind:
        with kind.box(limits={"disk_bytes": 64 << 20, "memory_bytes": 64 << 20}) as box:
            said = box.sh(
                "dd if=/dev/zero of=/tmp/big bs=1M count=100; ls -s /tmp/big >/dev/null && echo still there"
            )
            assert "still there" in said.out
            stats = kind.runtime.stats(box.handle)
            assert 48 << 20 < stats.disk_bytes <= stats.disk_limit_bytes <= 64 << 20
            assert stats.oom_kills == 0
        assert list((tmp_path / "state" / "disks").iterdir()) == []
        assert not [
            name
            for name in Path("/sys/block").glob("loop*/loop/backing_file")
            if str(tmp_path) in name.read_text()
        ]


@pytest.mark.skipif(not is_root(), reason="an ordinary user has no zygote anyway")
def test_bwrap_says_what_it_cannot_do(tmp_path, runtime_folder):
    with local_kind(tmp_path, executor="bwrap") as kind, kind.box() as box:
        with pytest.raises(NotSupportedError, match="root"):
            kind.runtime.snapshot(box.handle, "x")
        with pytest.raises(NotSupportedError, match="root"):
            kind.runtime.fork(box.handle, kind.spec(), timeout_seconds=5)


@as_root
def test_use_of_many_small_layers(kind, tmp_path):
    """Options of one mount are one page: an image may have more layers than long names would fit."""
    first = create(kind)
    handle, removed = first.handle, []
    for number in range(12):
        box_of(kind, handle).sh(f"echo {number} > /tmp/{number}")
        handle, other = kind.runtime.fork(handle, kind.spec(limits={}), timeout_seconds=START_SECONDS)
        removed.append(other)
    assert box_of(kind, handle).sh("cat /tmp/? /tmp/1? | wc -l").out.strip() == "12"
    for one in (*removed, handle):
        kind.runtime.remove(one)


def test_leases_of_sandboxes_that_are_no_more_are_given_back(tmp_path, runtime_folder, stored):
    store = stored.runtime.image_store
    with stored.box() as box:
        store.lease(store.find("box"), "sm-of-a-dead-worker")
        store.remove("box")
        again = LocalRuntime(stored.runtime._config)
        handle = again.create(make_spec(image="host"), timeout_seconds=START_SECONDS)
        assert set(store.holders()) == {box.handle.name}
        again.remove(handle)
        again.close()


@as_root
def test_an_entrypoint_of_the_image_or_the_job_is_started_as_its_user(kind, busybox_tar):
    program = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["id -u > started; sleep 60"]}
    import_with_config(kind, busybox_tar, User="app", WorkingDir="/srv", **program)
    image = replace(kind, image="box")
    with image.box(entrypoint="image") as box:
        assert wait_for(lambda: box.sh("cat /srv/started").out) == "1234\n"
    with image.box(entrypoint=("/bin/sh", "-c", "pwd > started; exit 3")) as box:
        assert wait_for(lambda: box.sh("cat /srv/started").out) == "/srv\n"
    with image.box() as box:
        assert box.sh("ls /srv/started").code == 1
    with kind.box(entrypoint="image") as box:
        box.client.ping()


def test_an_entrypoint_that_is_not_there_is_an_error_of_the_spec(kind):
    spec = kind.spec(entrypoint=("/no/such/program",))
    with pytest.raises(SpecInvalidError, match="/no/such/program"):
        kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert kind.runtime.list() == []
