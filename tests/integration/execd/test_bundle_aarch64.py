"""The bundle of the other architecture, built and run by QEMU's user mode: the recipe of docs/bundle.md."""

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h11
import httpx
import pytest
import wsproto

import execd
from execd.bundle import bundle_command
from execd.elf import program_interpreter
from tests.support.execd import Outcome, read_events, wait_for
from tests.support.images import ARM64_IMAGE, ensure_arm64_image, require_docker, unpack_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(400)]

QEMU = "qemu-aarch64-static"

OWN_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]

REGISTER = r"""
set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":aarch64:M::$magic:$mask:$1:F" > /proc/sys/fs/binfmt_misc/register
mount -t proc proc "$2/proc"
mount --bind /dev/null "$2/dev/null"
[ ! -d "$2/.sbx" ] || mount --bind "$2/../bundle" "$2/.sbx"
root=$2
shift 2
exec chroot "$root" "$@"
"""
"""Since Linux 6.7 formats are registered per user namespace: the host never learns of this one."""


def missing_part() -> str | None:
    """Say what keeps this machine from running programs of the other architecture."""
    for program in (QEMU, "mmdebstrap"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: qemu-user-static, mmdebstrap)"
    return None


def foreign(root: Path, *argv: str) -> list[str]:
    """The argv that runs a program in a root of the other architecture."""
    for name in ("proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    (root / "dev" / "null").touch()
    return [*OWN_NAMESPACES, "sh", "-c", REGISTER, "sh", str(shutil.which(QEMU)), str(root), *argv]


@pytest.fixture(scope="module")
def aarch64_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by Debian's own Python for arm64."""
    if platform.machine() != "x86_64" or "binfmt_misc" not in Path("/proc/filesystems").read_text():
        pytest.skip("needs an x86-64 kernel that has binfmt_misc")
    reason = missing_part()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)
    require_docker()
    ensure_arm64_image()
    work = tmp_path_factory.mktemp("aarch64")
    unpack_image(ARM64_IMAGE, work / "debian")
    for package in (execd, h11, wsproto):
        folder = Path(str(package.__file__)).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, work / "debian" / "src" / folder.name, ignore=ignored)
    build = ["env", "PYTHONPATH=/src", "python3", "-m", "execd.bundle", "--machine", "aarch64", "/out/bundle"]
    argv = foreign(work / "debian", *build)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if "register" in done.stderr or "binfmt_misc" in done.stderr:
        pytest.skip(f"this kernel registers no format in a user namespace: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    (work / "debian" / "out" / "bundle").rename(work / "bundle")
    return work / "bundle"


@contextmanager
def served(bundle: Path) -> Iterator[httpx.Client]:
    """execd of the bundle in an empty root beside it."""
    root = bundle.parent / "empty"
    (root / ".sbx").mkdir(parents=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        port = listener.getsockname()[1]
        argv = foreign(root, *bundle_command(args=["--listen-fd", str(listener.fileno())]))
        process = subprocess.Popen(argv, pass_fds=[listener.fileno()])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        process.kill()
        process.wait(10)


def test_it_is_built_for_aarch64_and_small(aarch64_bundle: Path) -> None:
    assert program_interpreter(aarch64_bundle / "bin" / "python3").name == "ld-linux-aarch64.so.1"
    files = [path for path in aarch64_bundle.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000_000
    assert b"/lib/aarch64-linux-gnu/" not in (aarch64_bundle / "lib" / "ld.so").read_bytes()


def test_it_answers_and_runs_a_command_in_an_empty_image(aarch64_bundle: Path) -> None:
    with served(aarch64_bundle) as client:
        assert wait_for(lambda: client.get("/ping").status_code == 200, seconds=30)
        program = "import os; print(os.uname().machine, os.getppid(), os.listdir('/.sbx'))"
        argv = [*bundle_command()[:-1], "-c", program]
        with client.stream("POST", "/command", json={"argv": argv}) as response:
            outcome = Outcome(list(read_events(response)))
        assert outcome.last["exit_code"] == 0, outcome
        assert outcome.output().split()[0] == b"aarch64"
