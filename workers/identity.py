"""Who this worker is: a node id that outlives the process, and proof that no other process uses it."""

import fcntl
import os
from pathlib import Path
from uuid import UUID

from core.errors import UnavailableError
from core.ids import new_id

__all__ = ["NodeIdentity", "boot_id"]


def boot_id() -> str:
    """Give the id of the machine's life since the start of its kernel, which no process outlives."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class NodeIdentity:
    """The node id, kept in a file that stays locked as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        """Read or make `node.id` in the folder. Raises UnavailableError if another worker holds it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "node.id"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            message = f"another worker uses {folder}: stop it or give this one its own SANDMILL_HOME"
            raise UnavailableError(message) from error
        text = os.pread(self._file, 64, 0).decode().strip()
        self.id = UUID(text) if text else new_id()
        if not text:
            os.pwrite(self._file, f"{self.id}\n".encode(), 0)
            os.fsync(self._file)

    def close(self) -> None:
        """Let another worker use the id."""
        os.close(self._file)
