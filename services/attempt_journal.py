"""What has to outlive this process but not the machine: notes on the node's own disk, quicker than the database.

A worker that is killed leaves them to the next one, which goes on with its attempts. Nothing is synced: after a power
loss there are no sandboxes to go on with.
"""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from core.logging import get_logger

__all__ = ["DROPPED", "AttemptJournal", "Spool"]

log = get_logger(__name__)

_END, _PATCH, _SPOOL = "end", "patch", "log"

DROPPED = "dropped"
"""In the place of a stream: the piece says how many bytes of its step are kept no longer."""


class AttemptJournal:
    """The notes of one node. Thread-safe for different attempts."""

    def __init__(self, folder: Path) -> None:
        """folder: made if missing, for its owner only."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

    def note_end(self, attempt_id: UUID, end: dict[str, Any]) -> None:
        """Keep the end of an attempt, before the sandbox that could tell it again is gone. end: JSON values."""
        self._write(self._path(attempt_id, _END), end)

    def end(self, attempt_id: UUID) -> dict[str, Any] | None:
        """Give the end that was noted; None if there is none."""
        return self._read(self._path(attempt_id, _END))

    def note_patch(self, attempt_id: UUID, step: str, result: dict[str, Any] | None) -> None:
        """Keep that a patch is being put in, which cannot be repeated, and then what came of it."""
        self._write(self._path(attempt_id, _PATCH), {"step": step, "result": result})

    def patch(self, attempt_id: UUID, step: str) -> dict[str, Any] | None:
        """Give what was noted of a step's patch: None if nothing was; else its `result`, None in the middle of it."""
        note = self._read(self._path(attempt_id, _PATCH))
        return note if note is not None and note["step"] == step else None

    def spool(self, attempt_id: UUID) -> "Spool":
        """Give the place for what a log holds back in memory; a file only once something is written to it."""
        return Spool(self._path(attempt_id, _SPOOL))

    def forget(self, attempt_id: UUID) -> None:
        """Drop all notes of an attempt. Idempotent."""
        for kind in (_END, _PATCH, _SPOOL):
            with suppress(FileNotFoundError):
                os.unlink(self._path(attempt_id, kind))  # noqa: PTH108 -- for each attempt, and mostly in vain

    def sweep(self, keep: Collection[UUID]) -> None:
        """Drop the notes of all attempts but these."""
        known = {str(attempt_id) for attempt_id in keep}
        for path in self._folder.iterdir():
            if path.name.partition(".")[0] not in known:
                path.unlink(missing_ok=True)

    def _path(self, attempt_id: UUID, kind: str) -> str:
        return f"{self._folder}/{attempt_id}.{kind}"

    def _write(self, path: str, value: dict[str, Any]) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb", buffering=0) as file:  # noqa: PTH123 -- see `forget`
            file.write(json.dumps(value).encode())
        os.rename(temporary, path)  # noqa: PTH104 -- see `forget`

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            note: dict[str, Any] = json.loads(Path(path).read_bytes())
        except FileNotFoundError:
            return None
        return note


class Spool:
    """Pieces of output in order, appended as they come. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        """path: of a file that need not be there."""
        self._path = path
        self._file: IO[bytes] | None = None
        self.size_bytes = 0

    def append(self, step: str, stream: str, data: bytes) -> None:
        """Keep a piece. A full disk costs the piece only if this process dies, too."""
        head = json.dumps([step, stream, len(data)]).encode() + b"\n"
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: PTH123, SIM115 -- closed by `close`
            self._file.write(head + data)
        except OSError as error:
            log.warning("log_not_spooled", error=str(error))
        self.size_bytes += len(head) + len(data)

    def replace(self, pieces: Sequence[tuple[str, str, bytes]]) -> None:
        """Keep these in the place of all that was kept, whole or not at all."""
        self.close()
        made = Spool(f"{self._path}.tmp")
        with suppress(FileNotFoundError):
            os.unlink(made._path)  # noqa: PTH108 -- see `forget`
        for piece in pieces:
            made.append(*piece)
        made.close()
        try:
            os.rename(made._path, self._path)  # noqa: PTH104 -- see `forget`
        except OSError as error:
            log.warning("log_not_spooled", error=str(error))
        self.size_bytes = made.size_bytes

    def pieces(self) -> Iterator[tuple[str, str, bytes]]:
        """Give all that was kept: step, stream, data. A last piece that was cut short is left out."""
        with suppress(FileNotFoundError), Path(self._path).open("rb") as file:
            while line := file.readline():
                try:
                    step, stream, count = json.loads(line)
                except ValueError:
                    return
                data = file.read(count)
                if len(data) < count:
                    return
                yield step, stream, data

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
