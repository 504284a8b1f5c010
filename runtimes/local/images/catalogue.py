"""Which images there are: one file per name, replaced and removed as a whole."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.errors import ImageNotFoundError
from runtimes.local.images.names import DIGEST, ImageName
from runtimes.local.images.records import ImageRecord, write_durably

__all__ = ["Catalogue"]

_MAX_LISTED = 20


class Catalogue:
    """The folder of names. The caller locks the store where that is needed."""

    def __init__(self, folder: Path) -> None:
        """folder: made by the store."""
        self._folder = folder

    def find(self, name_or_digest: str) -> ImageRecord:
        """Give an image by name, by its digest, or by that of its manifest, alone or after a repository.

        Raises ImageNotFoundError that says what there is, and SpecInvalidError for what is no name.
        """
        digest = name_or_digest if DIGEST.fullmatch(name_or_digest) else None
        if digest is None:
            name = ImageName.parse(name_or_digest)
            if (record := self.read(name)) is not None:
                return record
            digest = name.digest
        records = self.all()
        for record in records:
            if digest and digest in (record.digest, record.manifest_digest):
                return record
        known = [record.name for record in records][:_MAX_LISTED]
        listed = ", ".join(known) or "none"
        more = ", …" if len(records) > len(known) else ""
        message = f"no image {name_or_digest[:300]!r} in the store; there are: {listed}{more}"
        raise ImageNotFoundError(message)

    def names_of(self, name_or_digest: str) -> Sequence[str]:
        """Give the full names meant: one, or all of a digest. Raises what `find` raises."""
        record = self.find(name_or_digest)
        if not DIGEST.fullmatch(name_or_digest):
            return [record.full_name]
        return [other.full_name for other in self.all() if other.digest == record.digest]

    def read(self, name: ImageName) -> ImageRecord | None:
        """Give the image of exactly this name."""
        try:
            return ImageRecord.from_json(self._path(name.full).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> Sequence[ImageRecord]:
        """All images, by name."""
        found = []
        for path in self._folder.glob("*.json"):
            # Another process may remove it while we look; what cannot be read names nothing.
            with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                found.append(ImageRecord.from_json(path.read_text(encoding="utf-8")))
        return sorted(found, key=lambda record: record.full_name)

    def write(self, record: ImageRecord) -> None:
        """Add an image, or give its name to another."""
        write_durably(self._path(record.full_name), record.to_json())

    def forget(self, full_name: str) -> None:
        """Drop a name; one that is gone is no error."""
        self._path(full_name).unlink(missing_ok=True)

    def _path(self, full_name: str) -> Path:
        return self._folder / f"{hashlib.sha256(full_name.encode()).hexdigest()}.json"
