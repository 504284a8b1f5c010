"""Why this runtime ended a sandbox, kept on disk until that is removed: the engine says only that it was killed."""

from contextlib import suppress
from pathlib import Path

__all__ = ["EndNotes"]


class EndNotes:
    """One small file each."""

    def __init__(self, folder: Path) -> None:
        """folder: made with the first note."""
        self._folder = folder

    def note(self, ref: str, reason: str) -> None:
        """Keep a reason. ref: the container's id."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / ref).write_text(reason)

    def find(self, ref: str) -> str:
        """Give the reason; empty if none was noted."""
        with suppress(OSError):
            return (self._folder / ref).read_text()
        return ""

    def forget(self, ref: str) -> None:
        """Drop it. Idempotent."""
        (self._folder / ref).unlink(missing_ok=True)
