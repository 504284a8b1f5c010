"""Which layers running sandboxes use: one file per holder."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from core.errors import SpecInvalidError

__all__ = ["Leases"]

_HOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Leases:
    """The folder of leases. What it holds matters as long as sandboxes live, so nothing waits for the disk."""

    def __init__(self, folder: Path) -> None:
        """folder: made by the store."""
        self._folder = folder

    def write(self, holder: str, names: set[str]) -> None:
        """Note the layers or trees a holder uses. The caller holds the store's lock."""
        path = self._path(holder)
        draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        draft.write_text(json.dumps(sorted(names)), encoding="utf-8")
        draft.rename(path)

    def drop(self, holder: str) -> None:
        """Forget a holder; one that has no lease is no error."""
        self._path(holder).unlink(missing_ok=True)

    def holders(self) -> list[str]:
        """All holders, by name."""
        return sorted(path.stem for path in self._folder.glob("*.json") if not path.name.startswith("."))

    def names(self) -> set[str]:
        """All that is used. The caller holds the store's lock alone, so no lease is half written."""
        found: set[str] = set()
        for holder in self.holders():
            path = self._path(holder)
            # Another thread may release its lease while we look.
            with suppress(FileNotFoundError):
                try:
                    found.update(json.loads(path.read_text(encoding="utf-8")))
                except (ValueError, TypeError):
                    # Cut short by a loss of power, which no sandbox outlived.
                    path.unlink()
        return found

    def _path(self, holder: str) -> Path:
        if not _HOLDER.fullmatch(holder):
            raise SpecInvalidError(
                f"{holder!r} is no name of a lease's holder: it does not match {_HOLDER.pattern}"
            )
        return self._folder / f"{holder}.json"
