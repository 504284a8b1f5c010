"""Images for the store of the local runtime, small and made entry by entry."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.image_archives import Entry, docker_archive, file, folder, symlink, tar
from tests.support.sandboxes import Kind

__all__ = ["busybox_entries", "host_program_entries", "store_image"]

_APPLETS = (
    "sh cat id ls echo env sleep rm stat mkdir touch dd true df wc chmod ln mv head tail tr yes setsid du "
    "mount umount mknod kill readlink cp rmdir mkfifo dirname [ mktemp expr seq"
)


@cache
def _busybox() -> bytes:
    for path in (Path("/bin/busybox"), Path("/usr/bin/busybox")):
        if path.exists():
            return path.read_bytes()
    raise AssertionError("busybox is missing: install busybox-static")


def busybox_entries() -> list[Entry]:
    """A shell and its tools, with nothing else."""
    links = [symlink(f"bin/{name}", "busybox") for name in _APPLETS.split()]
    return [folder("bin"), file("bin/busybox", _busybox(), mode=0o755), *links]


def host_program_entries(*programs: str, libraries: tuple[str, ...] = ()) -> list[Entry]:
    """Programs of this host with the libraries they need, each at its own path. libraries: further ones."""
    paths = {*programs, *libraries}
    for program in programs:
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        paths |= {word for word in said.split() if word.startswith("/")}
    folders = {str(parent) for path in paths for parent in Path(path).parents} - {"/"}
    return [
        *(folder(path.lstrip("/")) for path in sorted(folders)),
        *(file(path.lstrip("/"), Path(path).read_bytes(), mode=0o755) for path in sorted(paths)),
    ]


@contextmanager
def store_image(kind: Kind, *layers: list[Entry], name: str = "hostile", **config: Any) -> Iterator[Kind]:
    """Import an image of layers, lowest first, with a config (Env, WorkingDir, User); gives the kind that has it."""
    name = f"{name}:latest"
    given: Mapping[str, Any] = {"Env": ["PATH=/bin:/usr/bin"], **config}
    archive = Path(kind.runtime._config.state_dir).parent / "image.tar"
    archive.write_bytes(docker_archive({name: [tar(*layer) for layer in layers]}, config=given))
    store = kind.runtime.image_store
    store.import_archive(archive)
    try:
        yield replace(kind, image=name)
    finally:
        store.remove(name)
