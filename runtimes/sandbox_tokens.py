"""Access tokens for the execd of each sandbox, where code inside can reach its port.

A token is derived from the sandbox's name and a secret of this node, so a restarted worker knows the tokens of all
sandboxes that still run, and nothing but the secret has to be kept.
"""

import hmac
import os
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from core.errors import RuntimeUnavailableError

__all__ = ["SandboxTokens"]

_SECRET_BYTES = 32


class SandboxTokens:
    """Gives tokens. Safe for several threads and processes at once."""

    def __init__(self, folder: Path) -> None:
        """folder: where the secret is kept; made with mode 0700 on first use."""
        self._path = folder / "token-secret"
        self._secret: bytes | None = None

    def of(self, name: str) -> str:
        """Give the token of a sandbox: 64 hexadecimal digits, the same for a name each time.

        Raises RuntimeUnavailableError if the secret can be neither read nor made, or is not ours alone.
        """
        if self._secret is None:
            try:
                self._secret = self._read_or_make()
            except OSError as error:
                message = f"the secret of the sandboxes' tokens cannot be kept in {self._path}: {error}"
                raise RuntimeUnavailableError(message) from error
        return hmac.digest(self._secret, name.encode(), "sha256").hex()

    def _read_or_make(self) -> bytes:
        with suppress(FileNotFoundError):
            return self._read()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="secret-new-", dir=self._path.parent) as temporary:
            fresh = Path(temporary) / "secret"
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(_SECRET_BYTES))
                file.flush()
                os.fsync(descriptor)
            # Of several processes one link succeeds, whole; all read that one.
            with suppress(FileExistsError):
                self._path.hardlink_to(fresh)
        return self._read()

    def _read(self) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            secret = file.read(_SECRET_BYTES + 1)
        is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
        if not is_private or status.st_uid != os.geteuid() or len(secret) != _SECRET_BYTES:
            message = (
                f"{self._path} is not {_SECRET_BYTES} bytes for this user alone: remove it, a new one is made"
            )
            raise RuntimeUnavailableError(message)
        return secret
