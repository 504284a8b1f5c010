"""User and group ids of a sandbox: a range of the host's that nobody else has."""

import os
import signal

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
    pid, pidfd = linux.fork_idle(linux.CLONE_NEWUSER)
    try:
        number = _number_in_proc(pidfd)
        map_ids(number, first_id, seen_as=seen_as)
        return os.open(f"/proc/{number}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(pidfd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _number_in_proc(pidfd: int) -> int:
    """Give what /proc calls a process: the one in sight may be of another process namespace than ours."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
