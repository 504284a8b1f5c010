"""Images whose author wants a word with execd: whatever they hold concerns the commands, never the daemon."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.errors import BadImageError
from tests.support import probes
from tests.support.images import DEBIAN_IMAGE, derived_image, ensure_debian_image, file_of_image
from tests.support.runtime_fixtures import kind_named

pytestmark = [pytest.mark.docker, pytest.mark.timeout(90)]

LIBRARIES = f"/lib/{os.uname().machine}-linux-gnu"
PATH = "ENV PATH=/usr/bin:/bin"


@pytest.fixture(scope="module")
def docker(runtime_folder):
    yield from kind_named("docker", runtime_folder)


@pytest.fixture
def box_of(docker):
    """Start a sandbox of Debian's image with changes: box_of(change, ..., files={path: content})."""
    ensure_debian_image()

    @contextmanager
    def make(*changes, files=None, **options):
        with (
            derived_image(DEBIAN_IMAGE, PATH, *changes, files=files or {}, **options) as name,
            docker.box(image=name) as box,
        ):
            yield box

    return make


def foreign_files(box):
    """What is mapped into execd that is not of its bundle, as the host sees it."""
    pid = box.runtime.look_at(box.handle).process.pid
    mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    assert any(path.endswith("libc.so.6") for path in mapped), mapped
    own = {path.name for path in box.runtime._prepare().path.rglob("*")}
    return {path for path in mapped if path.startswith("/") and Path(path).name not in own}


def test_preload_file_is_for_commands_only(box_of):
    library = f"{LIBRARIES}/libutil.so.1"
    with box_of(files={"etc/ld.so.preload": f"{library}\n".encode()}) as box:
        assert library in box.sh("cat /proc/self/maps").out
        assert foreign_files(box) == set()


def test_loader_variables_are_for_commands_only(box_of):
    variables = {
        "LD_PRELOAD": f"{LIBRARIES}/libanl.so.1",
        "LD_AUDIT": f"{LIBRARIES}/libutil.so.1",
        "LD_LIBRARY_PATH": "/hostile",
        "LD_BIND_NOW": "1",
        "GLIBC_TUNABLES": "glibc.malloc.perturb=7",
        "MALLOC_ARENA_MAX": "1",
    }
    changes = [f"ENV {name}={value}" for name, value in variables.items()]
    libraries = {f"hostile/{name}": b"no library" for name in ("libz.so.1", "libm.so.6", "libffi.so.8")}
    with box_of(*changes, files=libraries) as box:
        said = box.sh("env; cat /proc/self/maps").out.splitlines()
        assert {f"{name}={value}" for name, value in variables.items()} <= set(said)
        assert any(line.endswith("libanl.so.1") for line in said)
        assert not any(line.startswith("SANDMILL_ORIG_") for line in said)
        assert foreign_files(box) == set()


def test_settings_of_python_and_of_execd_do_not_reach_it(box_of):
    changes = [
        "PYTHONPATH=/hostile",
        "PYTHONHOME=/hostile",
        "PYTHONINSPECT=1",
        "EXECD_PORT=1",
        "BASH_ENV=/hostile/x",
    ]
    modules = {
        f"hostile/{name}.py": b"raise SystemExit('hostile')" for name in ("asyncio", "sitecustomize", "h11")
    }
    with box_of(*(f"ENV {change}" for change in changes), files=modules) as box:
        assert box.sh("echo $PYTHONHOME $EXECD_PORT").out == "/hostile\n"
        assert foreign_files(box) == set()


def test_name_services_of_the_image_are_not_loaded(box_of):
    """Its own programs load the module that it names; the bundle's C library does not."""
    services = "".join(f"{name}: hesiod files\n" for name in ("passwd", "group", "hosts"))
    ask = (
        "import pwd, socket\n"
        "for ask in (pwd.getpwnam, lambda name: socket.getaddrinfo(name.encode(), 1)):\n"
        "    try: ask('nobody-knows')\n"
        "    except (KeyError, OSError): pass\n"
        "print([line for line in open('/proc/self/maps') if 'libnss' in line])"
    )
    with box_of(files={"etc/nsswitch.conf": services.encode()}) as box:
        control = box.sh("LD_DEBUG=files getent passwd nobody-knows")
        assert b"libnss_hesiod" in control.of("stderr")
        said = box.python(ask)
        assert said.out == "[]\n", said.of("stderr")
        assert foreign_files(box) == set()


def test_libraries_of_the_image_are_not_found(box_of):
    """Such as libgcc_s, which a C library asks for when a thread ends."""
    load = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError: print('none')\nelse: print('loaded')"
    with box_of() as box:
        assert "libanl.so.1" in box.sh("LD_PRELOAD=libanl.so.1 cat /proc/self/maps").out
        assert box.python(load, f"{LIBRARIES}/libanl.so.1").out == "loaded\n"
        assert box.python(load, "libanl.so.1").out == "none\n"


@pytest.mark.parametrize("path", ["etc/localtime", "usr/share/locale/locale.alias", "etc/nsswitch.conf"])
def test_file_that_never_ends_does_not_stop_the_start(box_of, path):
    with box_of("ENV LANG=xx_YY.UTF-8", files={path: None}) as box:
        assert box.python("import time; print(time.localtime().tm_isdst)").out == "0\n"


NET_RAW = "\0\x20\0\0" + 12 * "\0"
"""CAP_NET_RAW as the permitted set of a file's attribute: see capability.h, revision 2."""

PRIVILEGES = ("NoNewPrivs", "Seccomp", "Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.mark.parametrize(
    ("mode", "attributes", "code"),
    [
        (0o6755, {}, 0),
        (0o755, {"security.capability": "\0\0\0\x02" + NET_RAW}, 0),
        (0o755, {"security.capability": "\x01\0\0\x02" + NET_RAW}, 126),
    ],
    ids=["setuid", "capability", "capability-in-effect"],
)
def test_privileged_program_of_the_image_gains_nothing(box_of, mode, attributes, code):
    """T3: it runs without the privilege; one that insists on it does not run."""
    files = {"cat": file_of_image(DEBIAN_IMAGE, "bin/cat")}
    with box_of(files=files, mode=mode, attributes=attributes) as box:
        seen = box.python("import os; print(oct(os.stat('/cat').st_mode)[-4:], os.listxattr('/cat'))").out
        assert seen == f"{mode:04o} {list(attributes)}\n"
        said = box.sh("/cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in said.out.splitlines() if ":\t" in line)
    status = {name: fields[name] for name in PRIVILEGES if fields}
    assert said.code == code
    assert code or probes.privilege_faults(status) == []


def test_volume_of_the_image_is_no_folder_of_the_host(box_of):
    """T9, T18: the engine would give it one without a limit, with devices and setuid programs."""
    with box_of("VOLUME /data") as box:
        written = box.sh("head -c 100000000 /dev/zero > /data/big; wc -c < /data/big").out
        (mount,) = [line for line in box.sh("cat /proc/mounts").out.splitlines() if " /data " in line]
        assert int(written) <= 32 << 20
        assert {"nosuid", "nodev"} <= set(mount.split()[3].split(","))


FORGED = {f"forged/{name}": b"#!/bin/sh\n" for name in ("lib/ld.so", "bin/python3", "app/execd.pyc")}


@pytest.mark.parametrize("change", ["VOLUME /.sbx/lib", "VOLUME /.sbx"])
def test_volume_in_the_place_of_execd_is_refused(box_of, change):
    """T7: its content would be the image's, and so would be every result."""
    files = {path.replace("forged", ".sbx"): content for path, content in FORGED.items()}
    with pytest.raises(BadImageError, match=r"\.sbx"), box_of(change, files=files):
        pass


@pytest.mark.parametrize(
    ("link", "target", "changes"),
    [
        (".sbx", "/mnt", ()),
        ("data", f"/.sbx/lib/python3.{sys.version_info[1]}/wsproto", ("VOLUME /data",)),
    ],
    ids=["of-all", "of-a-part"],
)
def test_link_in_the_place_of_execd_is_refused(docker, link, target, changes):
    """T7: what execd loads later would be where the link leads, or what the sandbox writes there."""
    ensure_debian_image()
    made = derived_image(DEBIAN_IMAGE, PATH, *changes, files={"mnt/.keep": b""}, links={link: target})
    with made as name, pytest.raises(BadImageError, match=r"\.sbx"), docker.box(image=name):
        pass
