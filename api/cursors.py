"""Cursors: opaque, and good for one list, one set of filters and one tenant only."""

import base64
import binascii
import hashlib
from uuid import UUID

from core.errors import InvalidRequestError

__all__ = ["CursorScope"]

_CHECK_BYTES = 8
_MAX_CHARS = 8192


class CursorScope:
    """One list as one tenant sees it with one set of filters."""

    def __init__(self, route: str, tenant_id: int, *filters: object) -> None:
        """Name the list: cursors of another one are refused."""
        self._scope = repr((route, tenant_id, filters)).encode()

    def encode(self, position: bytes) -> str:
        """Make the cursor that goes on after this position."""
        return base64.urlsafe_b64encode(self._check(position) + position).decode().rstrip("=")

    def decode(self, cursor: str) -> bytes:
        """Give the position. Raises InvalidRequestError for a cursor that this list did not give.

        The check is against mix-ups. It is no signature: a forged position skips rows of the forger's own list.
        """
        try:
            padded = cursor[:_MAX_CHARS] + "=" * (-len(cursor[:_MAX_CHARS]) % 4)
            raw = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error) as error:
            raise _bad_cursor() from error
        check, position = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        if check != self._check(position):
            raise _bad_cursor()
        return position

    def encode_id(self, last: UUID) -> str:
        """Make the cursor that goes on after this row."""
        return self.encode(last.bytes)

    def decode_id(self, cursor: str | None) -> UUID | None:
        """Give the last row's id; None at the start of the list."""
        if cursor is None:
            return None
        position = self.decode(cursor)
        if len(position) != 16:
            raise _bad_cursor()
        return UUID(bytes=position)

    def encode_number(self, last: int) -> str:
        """Make the cursor that goes on after the row with this number."""
        return self.encode(last.to_bytes(8, "big"))

    def decode_number(self, cursor: str) -> int:
        """Give the last row's number."""
        position = self.decode(cursor)
        if len(position) != 8:
            raise _bad_cursor()
        return int.from_bytes(position, "big") & 0x7FFF_FFFF_FFFF_FFFF

    def _check(self, position: bytes) -> bytes:
        return hashlib.sha256(self._scope + b"\0" + position).digest()[:_CHECK_BYTES]


def _bad_cursor() -> InvalidRequestError:
    return InvalidRequestError(
        "not a cursor of this list with these filters: start without one", field="cursor"
    )
