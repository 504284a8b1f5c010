"""Container images for tests, made on this machine without a registry, once, and found again afterwards."""

import io
import os
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

__all__ = [
    "ARM64_IMAGE",
    "BUSYBOX_IMAGE",
    "DEBIAN_IMAGE",
    "EMPTY_IMAGE",
    "MUSL_IMAGE",
    "derived_image",
    "docker_problem",
    "ensure_arm64_image",
    "ensure_debian_image",
    "ensure_images",
    "ensure_musl_image",
    "file_of_image",
    "require_docker",
    "unpack_image",
]

BUSYBOX_IMAGE = "sandmill-test:busybox"
"""A static busybox with a shell and the usual links; nothing else, no libc."""

EMPTY_IMAGE = "sandmill-test:empty"

MUSL_IMAGE = "sandmill-test:musl"
"""The busybox image and musl's libc, which is also a program."""

DEBIAN_IMAGE = "sandmill-test:debian"
"""Debian's bash and coreutils and the libraries they need: the same C library as the bundle's, or nearly."""

ARM64_IMAGE = "sandmill-test:arm64"
"""Debian's Python for aarch64, to be run by QEMU."""

_PACKAGE = "busybox-static"
_TIMEOUT_SECONDS = 120


def docker_problem() -> str | None:
    """Say why docker tests cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "the docker runtime needs root"
    try:
        done = subprocess.run(["docker", "version"], check=False, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no Docker engine: {error}"
    return None if done.returncode == 0 else "no Docker engine answers"


def require_docker() -> None:
    """Skip the test without an engine, or fail it where everything has to be there."""
    problem = docker_problem()
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)


def ensure_images() -> None:
    """Import the test images unless the engine has them."""
    if not _has_image(BUSYBOX_IMAGE):
        with TemporaryDirectory() as folder:
            _import(_busybox_tree(Path(folder)), BUSYBOX_IMAGE, "ENV PATH=/bin")
    if not _has_image(EMPTY_IMAGE):
        _import(_tar({}), EMPTY_IMAGE, "ENV PATH=/bin")


def ensure_musl_image() -> None:
    """Import the musl image unless the engine has it."""
    if not _has_image(MUSL_IMAGE):
        with TemporaryDirectory() as name:
            folder = Path(name)
            tree = _unpacked_package("musl", folder)
            libraries = {f"lib/{path.name}": path.read_bytes() for path in tree.glob("lib/*/libc.so")}
            loaders = {
                f"lib/{path.name}": content
                for path in tree.glob("lib/ld-musl-*.so.1")
                for content in libraries.values()
            }
            assert loaders, "the package has no loader"
            _import(_busybox_tree(folder, more={**libraries, **loaders}), MUSL_IMAGE, "ENV PATH=/bin")


def ensure_debian_image() -> None:
    """Import the Debian image unless the engine has it; about ten seconds."""
    if not _has_image(DEBIAN_IMAGE):
        _import(_debian_tree("bash,coreutils,dash,libc-bin"), DEBIAN_IMAGE, "ENV PATH=/usr/bin:/bin")


def ensure_arm64_image() -> None:
    """Import the image of the other architecture unless the engine has it; about twenty seconds."""
    if not _has_image(ARM64_IMAGE):
        packages = "bash,binutils,coreutils,dash,libc-bin,python3"
        _import(_debian_tree(packages, "--arch=arm64"), ARM64_IMAGE, "ENV PATH=/usr/bin:/bin")


@contextmanager
def derived_image(
    base: str,
    *changes: str,
    files: Mapping[str, bytes | None],
    links: Mapping[str, str] | None = None,
    mode: int = 0o755,
    attributes: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Make an image from another, and remove it in the end.

    changes: lines of a Dockerfile. files: contents by path; None makes a FIFO. links: targets by path. mode,
    attributes (extended ones): of all these files, which root owns.
    """
    name = f"sandmill-test:{uuid.uuid4().hex[:12]}"
    buffer = io.BytesIO(_exported(base))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.mode = mode
            info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in (attributes or {}).items()}
            if content is None:
                info.type = tarfile.FIFOTYPE
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        for path, target in (links or {}).items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    _import(buffer.getvalue(), name, *changes)
    try:
        yield name
    finally:
        _docker("rmi", "--force", name)


def file_of_image(name: str, path: str) -> bytes:
    """Give the content of a file."""
    with tarfile.open(fileobj=io.BytesIO(_exported(name))) as archive:
        file = archive.extractfile(path)
        assert file is not None, path
        return file.read()


def unpack_image(name: str, folder: Path) -> None:
    """Put the files of an image into a folder, without devices."""
    folder.mkdir()
    argv = ["tar", "-C", str(folder), "--exclude=dev/*", "-xf", "-"]
    subprocess.run(argv, input=_exported(name), check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)


def _exported(name: str) -> bytes:
    """All files of an image as a tar archive."""
    made = _docker("create", name, "none")
    assert made.returncode == 0, made.stderr.decode()
    container = made.stdout.decode().strip()
    try:
        exported = _docker("export", container)
        assert exported.returncode == 0, exported.stderr.decode()
    finally:
        _docker("rm", container)
    return exported.stdout


def _has_image(name: str) -> bool:
    return _docker("image", "inspect", name).returncode == 0


def _import(content: bytes, name: str, *changes: str) -> None:
    options = [word for change in changes for word in ("--change", change)]
    done = _docker("import", *options, "-", name, input=content)
    assert done.returncode == 0, done.stderr.decode()


def _busybox_tree(folder: Path, *, more: dict[str, bytes] | None = None) -> bytes:
    """A tar archive with the program, a link per applet, and more files."""
    program = _unpacked_package(_PACKAGE, folder) / "bin" / "busybox"
    applets = _tool(str(program), "--list", folder=folder).split()
    return _tar({"bin/busybox": program.read_bytes(), **(more or {})}, links=applets)


def _unpacked_package(package: str, folder: Path) -> Path:
    """Fetch a package and give the folder with its files."""
    _tool("apt-get", "download", package, folder=folder)
    _tool("dpkg", "-x", next(folder.glob(f"{package}_*.deb")).name, f"tree-{package}", folder=folder)
    return folder / f"tree-{package}"


def _debian_tree(packages: str, *options: str) -> bytes:
    """A tar archive of some packages and what they need, unpacked and not set up: none of them is run."""
    argv = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={packages}", *options, "bookworm", "-"]
    made = subprocess.run(argv, check=False, capture_output=True, timeout=_TIMEOUT_SECONDS)
    assert made.returncode == 0, made.stderr.decode()
    return made.stdout


def _tar(files: dict[str, bytes], links: list[str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777), ("kept", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for name, data in {**files, "kept/file": b"from the image\n"}.items():
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, len(data)
            archive.addfile(info, io.BytesIO(data))
        for applet in links or ():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
    return buffer.getvalue()


def _tool(*argv: str, folder: Path) -> str:
    done = subprocess.run(
        argv, cwd=folder, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
    )
    return done.stdout


def _docker(*arguments: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:  # noqa: A002
    argv = ["docker", *arguments]
    return subprocess.run(argv, input=input, check=False, capture_output=True, timeout=_TIMEOUT_SECONDS)
