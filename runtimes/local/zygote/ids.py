"""User and group ids of a sandbox: a range of the host's that nobody else has."""

import os
import socket

from runtimes import linux
from runtimes.local.zygote.orders import ID_COUNT

__all__ = ["map_ids", "mapped_namespace"]


def map_ids(pid: int, first_id: int, *, seen_as: int = 0) -> None:
    """Let the host's 65,536 ids from first_id on be those from `seen_as` on in the new user namespace of a process."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(f"{seen_as} {first_id} {ID_COUNT}")


def mapped_namespace(first_id: int, *, seen_as: int) -> int:
    """Make a user namespace with these ids, and give its descriptor. It is no process's.

    For mounts: files that belong to `seen_as` on disk then belong to first_id.
    """
    ours, theirs = socket.socketpair()
    pid, pidfd = linux.fork_into(linux.CLONE_NEWUSER)
    if pid == 0:
        # Its only purpose is to be there until the other end is closed. It says what /proc calls it: that one may be of
        # another process namespace than ours.
        ours.close()
        theirs.send(os.readlink("/proc/self").encode())
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    try:
        number = int(ours.recv(32))
        map_ids(number, first_id, seen_as=seen_as)
        return os.open(f"/proc/{number}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ours.close()
        os.close(pidfd)
        os.waitpid(pid, 0)
