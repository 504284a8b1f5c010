"""As which user PostgreSQL runs: it refuses root, and needs an entry in the password database."""

import os
import pwd
import subprocess
from dataclasses import dataclass

from launcher.errors import StartupError

__all__ = ["Identity", "choose_identity"]

_NOBODY = 65534
"""The overflow uid of the kernel, `nobody` on all current distributions."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How to run a program that refuses root.

    prefix: words put before its argv. uid: real user to drop to, None to stay. label: for people.
    """

    prefix: tuple[str, ...]
    uid: int | None
    label: str


def choose_identity() -> Identity:
    """Pick the way that works here. Raises StartupError for a user id without an entry.

    Root prefers a user namespace in which it looks like `nobody`: files stay its own and no folder has to be opened
    to another user. Containers mostly forbid that; there the program is started as the real `nobody`.
    """
    user = os.geteuid()
    if user != 0:
        _check_has_name(user)
        return Identity(prefix=(), uid=None, label="same user")
    _check_has_name(_NOBODY)
    namespace = _namespace_prefix()
    if namespace is not None:
        return Identity(prefix=namespace, uid=None, label="root in a user namespace")
    return Identity(prefix=(), uid=_NOBODY, label="root dropped to nobody")


def _check_has_name(user: int) -> None:
    try:
        pwd.getpwuid(user)
    except KeyError:
        message = (
            f"user id {user} has no entry in /etc/passwd, without which PostgreSQL does not start: "
            "add one, run as another user, or set DATABASE_URL to an external PostgreSQL"
        )
        raise StartupError(message) from None


def _namespace_prefix() -> tuple[str, ...] | None:
    """Words that run a program as uid 65534 of a new user namespace, or None where the system refuses that."""
    for folder in ("/usr/bin", "/bin"):
        unshare = f"{folder}/unshare"
        if not os.access(unshare, os.X_OK):
            continue
        prefix = (unshare, "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
        done = subprocess.run([*prefix, "/bin/true"], capture_output=True, check=False, timeout=10)
        return prefix if done.returncode == 0 else None
    return None
