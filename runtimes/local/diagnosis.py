"""Saying why this host starts no sandboxes, and what to do about it."""

import shutil
from collections.abc import Collection
from pathlib import Path

__all__ = ["advice", "describe_missing"]

_SETTINGS = {
    # Setting below /proc/sys: the value that forbids, and the command that allows.
    "kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
}


def advice(settings: Path = Path("/proc/sys")) -> str:
    """Give one line: the kernel setting to change, or the other ways."""
    for name, (forbidding, command) in _SETTINGS.items():
        path = settings / name
        if path.is_file() and path.read_text().strip() == forbidding:
            return f"this host forbids user namespaces: run `{command}` as root, or use the docker runtime"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return (
            "in a container, start it with seccomp=unconfined, apparmor=unconfined and systempaths=unconfined, "
            "or use the docker runtime"
        )
    other = (
        "use the docker runtime" if shutil.which("docker") else "install Docker and use the docker runtime"
    )
    return f"see whether `unshare -U true` works for this user; if not, {other}"


_WITHOUT = {
    "memory": "memory is limited per process, not for the sandbox as a whole",
    "cpu": "CPU time is not limited at all",
    "pids": "processes are limited by rlimit only",
}


def describe_missing(controllers: Collection[str], parent: str) -> list[str]:
    """Give a line with the way out for each control group controller that limits nothing here.

    parent: name of the control group below which the sandboxes' own are made.
    """
    way_out = f"run as root, or delegate the {{}} control group {parent!r} to this user and start the worker inside it"
    return [f"{words}: {way_out.format(name)}" for name, words in _WITHOUT.items() if name in controllers]
