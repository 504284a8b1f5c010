"""Where paths of a plan lead to in the layers of an image.

bwrap builds a sandbox while the host is still in its sight, below /oldroot, and follows links as it goes: one of an
image's, such as /etc -> /oldroot/home/somebody, would have it write there. So it is given paths without links.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import BadImageError
from runtimes.bundle import BUNDLE_MOUNT
from runtimes.local.images import find_in_layers
from runtimes.local.plan import (
    Bind,
    DeviceFolder,
    Directory,
    Mount,
    Overlay,
    Plan,
    ProcFolder,
    TextFile,
)
from runtimes.local.plan_parts import is_below
from runtimes.local.zygote.orders import BAD_IMAGE

__all__ = ["without_links"]

_MAX_LINKS = 40
_NOT_THE_IMAGES = {"/dev", "/proc", BUNDLE_MOUNT}


def without_links(plan: Plan) -> Plan:
    """Give the plan with every path as the image's links, if it has layers, resolve it.

    The layers must be folders that this process can read. Raises BadImageError where the image has something in the
    place of what the sandbox needs, or leads a folder to where the kernel's or execd's are.
    """
    root = plan.mounts[0]
    if not isinstance(root, Overlay):
        return plan
    image = _Image([Path(layer) for layer in root.layers])
    mounts = tuple(image.place(mount) for mount in plan.mounts[1:])
    return replace(plan, mounts=(root, *mounts), workdir=image.folder(plan.workdir))


class _Image:
    def __init__(self, layers: Sequence[Path]) -> None:
        self._layers = layers

    def place(self, mount: Mount) -> Mount:
        match mount:
            case TextFile(path):
                return replace(mount, path=self._file(path))
            case Directory(path):
                return replace(mount, path=self.folder(path))
            case Bind(_, path) | ProcFolder(path) | DeviceFolder(path) if path in _NOT_THE_IMAGES:
                if self.folder(path, may_be_ours=True) != path:
                    raise BadImageError(f"{BAD_IMAGE}{path}: it is a link, and has to be a folder")
        return mount

    def folder(self, path: str, *, may_be_ours: bool = False) -> str:
        resolved, mode = self._resolve(path)
        if mode is not None and not stat.S_ISDIR(mode):
            raise BadImageError(f"{BAD_IMAGE}{path}: it is a file, and has to be a folder")
        if not may_be_ours:
            self._check_is_the_images(path, resolved)
        return resolved

    def _file(self, path: str) -> str:
        resolved, mode = self._resolve(path)
        if mode is not None and not stat.S_ISREG(mode):
            raise BadImageError(f"{BAD_IMAGE}{path}: it has to be a file")
        self._check_is_the_images(path, resolved)
        return resolved

    def _check_is_the_images(self, path: str, resolved: str) -> None:
        if is_below(resolved, _NOT_THE_IMAGES):
            raise BadImageError(
                f"{BAD_IMAGE}{path}: it leads to {resolved}, which is the kernel's or execd's"
            )

    def _resolve(self, path: str) -> tuple[str, int | None]:
        """Give the path without links, and what is there; None for nothing."""
        done: list[bytes] = []
        left = os.fsencode(path).split(b"/")
        mode: int | None = stat.S_IFDIR
        links = 0
        while left:
            part = left.pop(0)
            if part in (b"", b".", b".."):
                del done[len(done) - (part == b"..") :]
                continue
            done.append(part)
            found = find_in_layers(self._layers, tuple(done))
            mode = None if found is None else found.st_mode
            if mode is not None and stat.S_ISLNK(mode):
                links += 1
                if links > _MAX_LINKS:
                    raise BadImageError(f"{BAD_IMAGE}{path}: it is a link that leads in circles")
                target = self._read_link(done)
                del done[0 if target.startswith(b"/") else len(done) - 1 :]
                left = [*target.split(b"/"), *left]
                mode = stat.S_IFDIR
            elif mode is not None and not stat.S_ISDIR(mode) and any(left):
                shown = os.fsdecode(b"/" + b"/".join(done))
                raise BadImageError(f"{BAD_IMAGE}{path}: {shown} is a file, and has to be a folder")
        return os.fsdecode(b"/" + b"/".join(done)), mode

    def _read_link(self, parts: list[bytes]) -> bytes:
        for layer in self._layers:
            if find_in_layers([layer], tuple(parts)) is not None:
                return os.fsencode((layer / os.fsdecode(b"/".join(parts))).readlink())
        raise AssertionError("the link was there a moment ago")
