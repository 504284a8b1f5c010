"""The last of what a terminal printed, for those who come back."""

from typing import Final

__all__ = ["RING_BYTES", "ReplayRing"]

RING_BYTES: Final = 1024 * 1024 - 9
"""With the nine bytes before it a replay is one message of 1 MiB, which is what most clients take at most."""


class ReplayRing:
    """Bytes by their offset in all output since the start; old ones fall out. end: the number of bytes ever added."""

    def __init__(self) -> None:
        self.end = 0
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Take in new output."""
        self.end += len(data)
        self._kept += data
        del self._kept[:-RING_BYTES]

    def since(self, offset: int) -> tuple[int, bytes]:
        """Give all that is kept from an offset on, and the offset at which it begins: later, if bytes are lost."""
        start = max(offset, self.end - len(self._kept))
        return start, bytes(self._kept[start - self.end + len(self._kept) :])
