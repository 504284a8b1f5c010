"""Folders of the host that a sandbox may see: found without ever being led astray by a link."""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from runtimes import linux
from runtimes.base import VolumeMount

__all__ = ["HostFolder", "open_host_path", "open_sub_path"]

_FLAGS = os.O_PATH | os.O_CLOEXEC


@dataclass(slots=True)
class HostFolder:
    """A folder, or regular file, of the host, held open: others may rename what is on its path meanwhile.

    Closed by the end of its `with`.
    """

    descriptor: int

    def __enter__(self) -> Self:
        """Give it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        os.close(self.descriptor)

    @property
    def path(self) -> str:
        """Its path now, without a link in it."""
        return str(Path(f"/proc/self/fd/{self.descriptor}").readlink())

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from all others."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino


def open_host_path(
    volume: VolumeMount, path: str, allowed: Sequence[str], owner: tuple[int, int]
) -> HostFolder:
    """Open a path of the host that lies in an allowed folder, before and after its links were followed.

    A missing folder is made, for owner: (uid, gid). Raises SpecInvalidError, OSError.
    """
    if not any(_is_in(PurePosixPath(path), PurePosixPath(folder)) for folder in allowed):
        listed = ", ".join(allowed) or "none at all"
        volume.refuse("host_path", f"{path} is in no folder that this node lets sandboxes see: {listed}")
    real = PurePosixPath(os.path.realpath(path))
    for folder in allowed:
        top = PurePosixPath(os.path.realpath(folder))
        if _is_in(real, top):
            with HostFolder(os.open(top, _FLAGS)) as opened:
                # Now link by link: whoever may write there may have changed it since.
                return _descend(volume, "host_path", opened, str(real.relative_to(top)), owner, links=False)
    return volume.refuse("host_path", f"{path} leads out of the folders that sandboxes may see")


def open_sub_path(volume: VolumeMount, folder: HostFolder, path: str, owner: tuple[int, int]) -> HostFolder:
    """Open a path below a folder; a missing one is made. Links are followed within the folder only.

    Raises SpecInvalidError, OSError.
    """
    return _descend(volume, "sub_path", folder, path, owner, links=True)


def _descend(
    volume: VolumeMount, part: str, folder: HostFolder, path: str, owner: tuple[int, int], *, links: bool
) -> HostFolder:
    """Open a path below a folder, making what is missing of it."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    try:
        for depth in range(1, len(names) + 1):
            _ensure(folder.descriptor, names[:depth], owner, links=links)
        opened = linux.open_below(folder.descriptor, "/".join(names) or ".", _FLAGS, links=links)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR):
            raise
        return volume.refuse(part, f"{path} leads out of the volume, or through something that is no folder")
    found = HostFolder(opened)
    mode = os.fstat(opened).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        with found:
            volume.refuse(part, f"{path} is neither a folder nor a regular file")
    return found


def _ensure(folder: int, names: list[str], owner: tuple[int, int], *, links: bool) -> None:
    """Make the last of some names unless it is there."""
    try:
        os.close(linux.open_below(folder, "/".join(names), _FLAGS, links=links))
    except FileNotFoundError:
        above = linux.open_below(
            folder, "/".join(names[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY, links=links
        )
        try:
            os.mkdir(names[-1], 0o755, dir_fd=above)
            os.chown(names[-1], *owner, dir_fd=above, follow_symlinks=False)
        except FileExistsError:
            return  # by another create, just now
        finally:
            os.close(above)


def _is_in(path: PurePosixPath, folder: PurePosixPath) -> bool:
    return path == folder or path.is_relative_to(folder)
