"""One tree out of many layers, for users who cannot mount overlay from layers that hide what is below them.

Files are hard links into the layers, so images that share layers share their space. Nothing may write to them in
place: sandboxes get them as a read-only lower folder.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtimes.local.images.confined import FOLDER_FLAGS, PathParts
from runtimes.local.images.records import LayerRecord

__all__ = ["merge_layer"]


def merge_layer(layer: Path, record: LayerRecord, tree: Path) -> None:
    """Lay a layer over a tree that has all layers below it. Both are ours, on one disk, and nobody writes to them."""
    with _opened(layer) as source, _opened(tree) as target:
        _merge_folder(source, target, (), record)


def _merge_folder(source: int, target: int, path: PathParts, record: LayerRecord) -> None:
    if path in record.opaque:
        for left in os.listdir(target):
            _remove(target, os.fsencode(left))
    for hidden in record.hidden_in(path):
        _remove(target, hidden)
    for entry in os.scandir(source):
        name = os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False):
            _merge_subfolder(source, target, (*path, name), record)
        else:
            _remove(target, name)
            _link(source, target, name)
    found = os.fstat(source)
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))


def _merge_subfolder(source: int, target: int, path: PathParts, record: LayerRecord) -> None:
    name = path[-1]
    found = _stat(target, name)
    if found is None or not stat.S_ISDIR(found.st_mode):
        _remove(target, name)
        os.mkdir(name, 0o700, dir_fd=target)
    with _opened(name, source) as below, _opened(name, target) as into:
        _merge_folder(below, into, path, record)


def _remove(folder: int, name: bytes) -> None:
    found = _stat(folder, name)
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(os.fsdecode(name), dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _link(source: int, target: int, name: bytes) -> None:
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        _copy(source, target, name)


def _copy(source: int, target: int, name: bytes) -> None:
    """Copy what has as many links as the file system can count: 65,000 on ext4."""
    found = os.lstat(name, dir_fd=source)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return
    readable = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(readable, "rb") as reading, open(os.open(name, flags, 0o600, dir_fd=target), "wb") as writing:  # noqa: PTH123 -- descriptors
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fchmod(writing.fileno(), stat.S_IMODE(found.st_mode))
        os.utime(writing.fileno(), ns=(found.st_mtime_ns, found.st_mtime_ns))


def _stat(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


@contextmanager
def _opened(folder: Path | bytes, parent: int | None = None) -> Iterator[int]:
    handle = os.open(folder, FOLDER_FLAGS, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)
