"""Reads single files of an image as a sandbox would see them, without mounting it.

Links are followed within the image only, and by us: the kernel is never given more than one component at a time.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from core.errors import BadImageError
from runtimes.local.images.confined import FOLDER_FLAGS
from runtimes.local.images.stacking import OPAQUE_ATTRIBUTE

__all__ = ["read_file"]

_MAX_LINKS = 16
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_file(layers: Sequence[Path], path: str, *, max_bytes: int = 1 << 20) -> bytes | None:
    """Read a file of an image. layers: top first, see `StoredImage`. path: absolute.

    None if there is no such file. Raises BadImageError for one that is larger, or links in circles.
    """
    parts = _normal([], os.fsencode(path))
    for _ in range(_MAX_LINKS):
        for layer in layers:
            found = _look_into(layer, parts, max_bytes)
            if isinstance(found, list):
                parts = found
                break
            if found is not _BELOW:
                return found if isinstance(found, bytes) else None
        else:
            return None
    raise BadImageError(f"{path} in the image is a link that leads in circles")


class _Below:
    """Says that a layer has nothing to say about a path: the next one below may."""


_BELOW = _Below()


def _look_into(layer: Path, parts: list[bytes], max_bytes: int) -> bytes | list[bytes] | _Below | None:
    """Give the content, or the path that a link on the way leads to, or None if the path is hidden or no file."""
    handle = os.open(layer, FOLDER_FLAGS)
    try:
        is_opaque = False
        for index, part in enumerate(parts):
            try:
                found = os.lstat(part, dir_fd=handle)
            except FileNotFoundError:
                return None if is_opaque else _BELOW
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(part, dir_fd=handle)
                return [*_normal(parts[:index], target), *parts[index + 1 :]]
            if index == len(parts) - 1:
                return _read(part, handle, max_bytes) if stat.S_ISREG(found.st_mode) else None
            if not stat.S_ISDIR(found.st_mode):
                return None
            below = os.open(part, FOLDER_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = below
            is_opaque = is_opaque or OPAQUE_ATTRIBUTE in os.listxattr(handle)
        return None
    finally:
        os.close(handle)


def _read(name: bytes, folder: int, max_bytes: int) -> bytes:
    with os.fdopen(os.open(name, _FILE_FLAGS, dir_fd=folder), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        shown = name[:100].decode("utf-8", "backslashreplace")
        raise BadImageError(f"{shown} in the image is larger than {max_bytes} bytes")
    return data


def _normal(folder: list[bytes], path: bytes) -> list[bytes]:
    """Give the components of a path seen from a folder; above the root is the root."""
    parts = [] if path.startswith(b"/") else list(folder)
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return parts
