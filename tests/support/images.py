"""Container images for tests, made on this machine without a registry, once, and found again afterwards."""

import io
import os
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["BUSYBOX_IMAGE", "EMPTY_IMAGE", "docker_problem", "ensure_images"]

BUSYBOX_IMAGE = "sandmill-test:busybox"
"""A static busybox with a shell and the usual links; nothing else, no libc."""

EMPTY_IMAGE = "sandmill-test:empty"

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


def ensure_images() -> None:
    """Import the test images unless the engine has them."""
    if not _has_image(BUSYBOX_IMAGE):
        with TemporaryDirectory() as folder:
            _import(_busybox_tree(Path(folder)), BUSYBOX_IMAGE, "ENV PATH=/bin")
    if not _has_image(EMPTY_IMAGE):
        _import(_tar({}), EMPTY_IMAGE, "ENV PATH=/bin")


def _has_image(name: str) -> bool:
    return _docker("image", "inspect", name).returncode == 0


def _import(content: bytes, name: str, change: str) -> None:
    done = _docker("import", "--change", change, "-", name, input=content)
    assert done.returncode == 0, done.stderr.decode()


def _busybox_tree(folder: Path) -> bytes:
    """A tar archive with the program and a link per applet."""
    _tool("apt-get", "download", _PACKAGE, folder=folder)
    _tool("dpkg", "-x", next(folder.glob("*.deb")).name, "tree", folder=folder)
    program = folder / "tree" / "bin" / "busybox"
    applets = _tool(str(program), "--list", folder=folder).split()
    return _tar({"bin/busybox": program.read_bytes()}, links=applets)


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
