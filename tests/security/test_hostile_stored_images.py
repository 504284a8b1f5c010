"""Stored images whose author wants a word with execd, or with the host: on each executor that starts them."""

import os
import shutil
import sysconfig
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from core.errors import BadImageError, RuntimeUnavailableError
from tests.support import probes
from tests.support.entry_points import call
from tests.support.execd import names_in
from tests.support.image_archives import docker_archive, file, folder, symlink, tar
from tests.support.sandboxes import START_SECONDS, is_root, local_kind
from tests.support.stored_images import busybox_entries, host_program_entries, store_image

pytestmark = pytest.mark.timeout(60)

as_root = pytest.mark.skipif(not is_root(), reason="needs root")

LIBRARIES = f"/lib/{os.uname().machine}-linux-gnu"
PRELOADED, OTHER = f"{LIBRARIES}/libutil.so.1", f"{LIBRARIES}/libanl.so.1"


@pytest.fixture(scope="module")
def box_of(local):
    """Start a sandbox of an image of busybox and entries: box_of(entry, ..., base=..., **config)."""

    @contextmanager
    def make(*entries, base=None, spec=None, **config):
        layers = [busybox_entries() if base is None else base, list(entries)]
        with store_image(local, *layers, **config) as kind, kind.box(**(spec or {})) as box:
            yield box

    return make


@pytest.fixture(scope="module")
def glibc_base():
    """A shell and tools that the C library's loader starts."""
    programs = ("/bin/sh", "/bin/cat", "/usr/bin/env", "/usr/bin/getent")
    return host_program_entries(*programs, libraries=(PRELOADED, OTHER))


def process_of(box):
    return box.runtime._find(box.handle).init.pid


def foreign_files(box):
    """What is mapped into execd that is of neither its bundle nor the interpreter's own library, seen by the host."""
    mapped = {
        line.split(maxsplit=5)[-1] for line in Path(f"/proc/{process_of(box)}/maps").read_text().splitlines()
    }
    files = {path for path in mapped if path.startswith("/")}
    assert any(path.endswith("libc.so.6") for path in files), mapped
    own = {path.name for path in box.runtime._prepare().bundle.path.rglob("*")}
    library = sysconfig.get_path("stdlib")
    return {path for path in files if Path(path).name not in own and not path.startswith(f"{library}/")}


def test_preload_file_is_for_commands_only(box_of, glibc_base):
    with box_of(file("etc/ld.so.preload", f"{PRELOADED}\n".encode()), base=glibc_base) as box:
        assert PRELOADED in box.sh("cat /proc/self/maps").out
        assert foreign_files(box) == set()


def test_loader_variables_are_for_commands_only(box_of, glibc_base):
    variables = {
        "PATH": "/bin:/usr/bin",
        "LD_PRELOAD": OTHER,
        "LD_AUDIT": PRELOADED,
        "LD_LIBRARY_PATH": "/hostile",
        "LD_BIND_NOW": "1",
        "GLIBC_TUNABLES": "glibc.malloc.perturb=7",
        "MALLOC_ARENA_MAX": "1",
        "PYTHONHOME": "/hostile",
        "PYTHONPATH": "/hostile",
        "BASH_ENV": "/hostile/x",
    }
    libraries = [file(f"hostile/{name}", b"no library") for name in ("libz.so.1", "libm.so.6", "libffi.so.8")]
    env = [f"{name}={value}" for name, value in variables.items()]
    with box_of(folder("hostile"), *libraries, base=glibc_base, Env=env) as box:
        said = box.sh("env; cat /proc/self/maps").out.splitlines()
        assert {f"{name}={value}" for name, value in variables.items()} <= set(said)
        assert any(line.endswith("libanl.so.1") for line in said)
        assert not any(line.startswith("SANDMILL_ORIG_") for line in said)
        assert foreign_files(box) == set()


def test_name_services_of_the_image_are_not_loaded(box_of, glibc_base):
    services = "".join(f"{name}: hostile files\n" for name in ("passwd", "group", "hosts")).encode()
    module = file(f"{LIBRARIES}/libnss_hostile.so.2".lstrip("/"), Path(OTHER).read_bytes(), mode=0o755)
    with box_of(file("etc/nsswitch.conf", services), module, base=glibc_base) as box:
        assert "libnss_hostile" in box.sh("LD_DEBUG=files getent passwd nobody-knows 2>&1").out
        assert call(box, "GET", "/files/info?path=/etc")[0] == 200  # names its owner
        assert foreign_files(box) == set()


NEVER_ENDING = (
    "etc/localtime",
    "etc/passwd",
    "etc/group",
    "etc/nsswitch.conf",
    "usr/share/locale/locale.alias",
)


def check_nothing_waits(box):
    assert box.python("import time; print(time.localtime().tm_isdst)").out == "0\n"
    for path in ("/bin", *(f"/{name}" for name in NEVER_ENDING)):
        assert call(box, "GET", f"/files/info?path={path}")[0] == 200
    box.client.ping()


def test_files_that_never_end_stop_nothing(box_of):
    links = [symlink(path, "/dev/zero") for path in NEVER_ENDING]
    with box_of(*links, Env=["PATH=/bin", "LANG=xx_YY.UTF-8"], User="7") as box:
        check_nothing_waits(box)


@as_root
def test_fifos_that_a_sandbox_left_stop_no_later_one(box_of, local):
    """An archive's are dropped; a snapshot has those of the sandbox it was taken of."""
    with box_of(Env=["PATH=/bin", "LANG=xx_YY.UTF-8"]) as box:
        for path in NEVER_ENDING:
            assert box.sh(f"mkdir -p $(dirname /{path}); rm -f /{path}; mkfifo /{path}").code == 0
        with snapshot_of(local, box) as image, local.box(image=image) as later:
            assert later.sh("[ -p /etc/passwd ] && echo left").out == "left\n"
            check_nothing_waits(later)


@as_root
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("rm -r /tmp; echo > /tmp", "/tmp"),
        ("mv /etc /old; ln -s /.sbx /etc", "/etc"),
        ("rm -r /srv; ln -s /proc/1/task /srv", "/srv/file"),
    ],
)
def test_files_that_a_sandbox_left_are_as_suspect(box_of, local, change, path):
    with box_of(WorkingDir="/srv/file") as box:
        assert box.sh(change, cwd="/").code == 0
        with snapshot_of(local, box) as image, pytest.raises(BadImageError, match=path):
            local.runtime.create(local.spec(image=image), timeout_seconds=START_SECONDS)


@contextmanager
def snapshot_of(kind, box):
    kind.runtime.snapshot(box.handle, "hostile")
    try:
        yield "snapshot:hostile"
    finally:
        kind.runtime.remove_snapshot("hostile")


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("/dev", file("dev")),
        ("/dev", symlink("dev", "/bin")),
        ("/dev", symlink("dev", "nowhere")),
        ("/proc", file("proc")),
        ("/proc", symlink("proc", "/bin")),
        ("/.sbx", file(".sbx")),
        ("/.sbx", symlink(".sbx", "/bin")),
        ("/.sbx", symlink(".sbx", "nowhere")),
        ("/.sbx", symlink(".sbx", ".sbx")),
        ("/etc/hosts", file("etc")),
        ("/etc/hosts", symlink("etc", "/.sbx")),
        ("/etc/hosts", folder("etc/hosts")),
        ("/tmp", file("tmp")),
        ("/tmp", symlink("tmp", "tmp")),
        ("/srv/file", file("srv/file")),
        ("/srv/file", symlink("srv/file", "file")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0].type.decode()}-{value[0].linkname}",
)
def test_image_without_a_place_for_a_folder_is_named(local, path, entry):
    """T7: a link is as bad as a file: the sandbox could put something else in its place."""
    with store_image(local, busybox_entries(), [entry], WorkingDir="/srv/file") as kind:
        before = local.runtime.list(), Path("/proc/self/mounts").read_text()
        with pytest.raises(BadImageError, match=path):
            kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)
        assert (local.runtime.list(), Path("/proc/self/mounts").read_text()) == before
        assert kind.runtime.image_store.holders() == []


@pytest.mark.parametrize(
    "links",
    [
        {"etc": "/oldroot/var/tmp/{name}", "tmp": "/oldroot/var/tmp/{name}"},
        {"etc": "/../../var/tmp/{name}", "tmp": "../../../../var/tmp/{name}"},
        {"etc": "/proc/1/root/var/tmp/{name}", "srv": "/proc/self/cwd/../../var/tmp/{name}"},
        {"srv": "/oldroot/var/tmp/{name}"},
        {"etc/hosts": "/oldroot/var/tmp/{name}/a", "etc/hostname": "/../oldroot/var/tmp/{name}/b"},
    ],
    ids=["oldroot", "dots", "process-root", "workdir", "files"],
)
def test_links_of_the_image_lead_nowhere_on_the_host(local, links):
    """T6, T27: whoever builds the sandbox must not follow them in sight of the host."""
    name = f"canary-{os.getpid()}"
    canary = Path("/var/tmp") / name
    canary.mkdir(mode=0o777)
    canary.chmod(0o777)
    try:
        entries = [symlink(path, target.format(name=name)) for path, target in links.items()]
        with (
            store_image(local, busybox_entries(), entries, WorkingDir="/srv/new") as kind,
            suppress(BadImageError),
            kind.box() as box,
        ):
            assert box.sh(f"echo x > /tmp/x; echo on; ls /oldroot/var/tmp/{name}").out.startswith("on\n")
        assert names_in(canary) == []
    finally:
        shutil.rmtree(canary)


@pytest.mark.parametrize("number", range(3, 24))
def test_open_descriptor_is_no_working_directory(local, number):
    """T6: a link to one that the starter has open."""
    with (
        store_image(local, busybox_entries(), [symlink("srv", f"/proc/self/fd/{number}")]) as kind,
        suppress(BadImageError),
        kind.box(workdir="/srv") as box,
    ):
        assert box.sh("ls -d ../../../../../../root/.. /home 2>/dev/null").out == ""


@as_root
def test_root_starts_no_stored_image_by_bwrap(tmp_path, runtime_folder):
    archive = tmp_path / "box.tar"
    archive.write_bytes(docker_archive({"box:1": [tar(*busybox_entries())]}))
    with local_kind(tmp_path, executor="bwrap") as kind:
        kind.runtime.image_store.import_archive(archive)
        with pytest.raises(RuntimeUnavailableError, match="executor to auto"):
            kind.runtime.create(kind.spec(image="box:1"), timeout_seconds=START_SECONDS)
        assert kind.runtime.list() == []
        assert kind.runtime.image_store.holders() == []


NET_RAW = "\0\x20\0\0" + 12 * "\0"
"""CAP_NET_RAW as the permitted set of a file's attribute: see capability.h, revision 2."""

PRIVILEGES = ("NoNewPrivs", "Seccomp", "Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.mark.parametrize(
    ("mode", "attributes"),
    [
        (0o6755, {}),
        (0o755, {"SCHILY.xattr.security.capability": "\x01\0\0\x02" + NET_RAW}),
        (0o755, {"SCHILY.xattr.security.capability": "\0\0\0\x02" + NET_RAW}),
    ],
    ids=["setuid", "capability-in-effect", "capability"],
)
def test_privileged_program_of_the_image_gains_nothing(box_of, glibc_base, mode, attributes):
    """T3: it runs without the privilege, as the user that called it."""
    program = file("cat", Path("/bin/cat").read_bytes(), mode=mode, **attributes)
    with box_of(program, base=glibc_base, User="1234:1234") as box:
        said = box.sh("/cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in said.out.splitlines() if ":\t" in line)
    if fields:
        assert probes.privilege_faults({name: fields[name] for name in PRIVILEGES}) == []
        assert set(fields["Uid"].split()) == {"1234"}
    assert said.code in (0, 126)
