"""User and group ids of a sandbox: a range of the host's that nobody else has."""

import os

from runtimes import linux
from runtimes.local.zygote.orders import ID_COUNT

__all__ = ["map_ids", "mapped_namespace"]


def map_ids(pid: int, first_id: int) -> None:
    """Let ids 0 to 65,535 in the new user namespace of a process be the host's from first_id on."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(f"0 {first_id} {ID_COUNT}")


def mapped_namespace(first_id: int) -> int:
    """Make a user namespace with these ids, and give its descriptor. It is no process's."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = linux.fork_into(linux.CLONE_NEWUSER)
    if pid == 0:
        # Its only purpose is to be there until the other end is closed.
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    try:
        map_ids(pid, first_id)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(read_end)
        os.close(write_end)
        os.close(pidfd)
        os.waitpid(pid, 0)
