"""The folder that holds everything the stack keeps: data, passwords, logs, and the locks that guard them."""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from launcher.errors import StartupError

__all__ = ["Home"]

MIN_FREE_BYTES = 512 * 1024 * 1024
"""PostgreSQL alone writes 40 MB at its first start and up to 1 GB of write-ahead log under load."""

MAX_PATH_BYTES = 900
"""PostgreSQL cuts paths at 1024 bytes; the rest is for the names below the home."""

ORPHAN_TIMEOUT_SECONDS = 30.0
"""Children of a killed launcher end within 3 s, but PostgreSQL first writes its checkpoint to a slow disk."""


class Home:
    """An exclusively held SANDMILL_HOME. Use as a context manager; entering raises StartupError.

    path: absolute. children_lock_fd: every child inherits it, see `__enter__`.
    """

    def __init__(self, path: Path) -> None:
        """Touch nothing yet. path: made with mode 0700 on entering when it is missing."""
        self.path = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 -- resolve() would follow links
        self.state = self.path / "state"
        self.logs = self.path / "logs"
        self.secrets = self.state / "secrets"
        self.children_lock_fd = -1
        self._launcher_lock_fd = -1

    def __enter__(self) -> Self:
        """Check the folders and take the locks.

        Two locks: the launcher holds the first, and all its children inherit the second. So a second launcher is
        refused at once, while the successor of a killed one waits until the last orphan is gone: two servers on one
        data folder would ruin it. The kernel keeps both exact, unlike pid files, which name zombies and reused pids.
        """
        self.check()
        try:
            self._launcher_lock_fd = self._open_lock("launcher.lock")
            self._refuse_second_copy()
            self.children_lock_fd = self._open_lock("children.lock")
            self._wait_for_orphans()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the folder free."""
        self._close()

    def check(self) -> None:
        """Make the folders, without taking the locks. Raises StartupError when they cannot be written or are full."""
        self._make_folders()
        self._check_free_space()

    def secret(self, name: str) -> str:
        """Read a generated password, made at the first call. 43 URL-safe characters in a file of mode 0600."""
        stored = self.read_secret(name)
        return self.write_secret(name, secrets.token_urlsafe(32)) if stored is None else stored

    def read_secret(self, name: str) -> str | None:
        """Read a stored secret; None when there is none."""
        try:
            return (self.secrets / name).read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"cannot read {self.secrets / name}: {error}") from error

    def write_secret(self, name: str, value: str) -> str:
        """Store a secret, whole or not at all, readable by its owner alone. Returns the value."""
        path = self.secrets / name
        draft = path.with_name(f".{name}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        return value

    def _make_folders(self) -> None:
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            message = (
                f"the path of SANDMILL_HOME is longer than {MAX_PATH_BYTES} bytes: set it to a shorter one"
            )
            raise StartupError(message)
        try:
            for folder in (self.path, self.state, self.logs, self.secrets):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / ".probe").write_bytes(b"")
            (self.path / ".probe").unlink()
        except OSError as error:
            message = (
                f"cannot write to {self.path} ({error.strerror}): "
                "set SANDMILL_HOME to a folder this user may write to"
            )
            raise StartupError(message) from error

    def _check_free_space(self) -> None:
        free = shutil.disk_usage(self.path).free
        if free < MIN_FREE_BYTES:
            message = (
                f"only {free // 2**20} MiB are free on the disk of {self.path}, at least {MIN_FREE_BYTES // 2**20} MiB "
                "are needed: free some or set SANDMILL_HOME to a folder on another disk"
            )
            raise StartupError(message)

    def _open_lock(self, name: str) -> int:
        try:
            return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(f"cannot open {self.path / name}: {error.strerror}") from error

    def _refuse_second_copy(self) -> None:
        if not _try_lock(self._launcher_lock_fd):
            message = (
                f"another copy of Sandmill runs on {self.path}: "
                "stop it or set SANDMILL_HOME to another folder for a second one"
            )
            raise StartupError(message)

    def _wait_for_orphans(self) -> None:
        deadline = time.monotonic() + ORPHAN_TIMEOUT_SECONDS
        while not _try_lock(self.children_lock_fd):
            if time.monotonic() > deadline:
                message = (
                    f"programs of an earlier, killed copy still run on {self.path}: end them "
                    "(`fuser children.lock` in that folder lists them), then start again"
                )
                raise StartupError(message)
            time.sleep(0.05)

    def _close(self) -> None:
        for descriptor in (self.children_lock_fd, self._launcher_lock_fd):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.children_lock_fd = self._launcher_lock_fd = -1


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StartupError(
            f"cannot lock a file in SANDMILL_HOME ({error.strerror}): is it on a network disk?"
        ) from error
    return True
