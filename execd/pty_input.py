"""What clients type, on its way to a program that may not read it."""

import asyncio
import os
from typing import Final

__all__ = ["TerminalInput"]

_CHUNK_BYTES: Final = 64 * 1024
_MAX_WAITING_BYTES: Final = 1024 * 1024
"""Beyond it the client has to wait; until then signals sent after a large paste still come through."""


class TerminalInput:
    """Writes to one descriptor, in order, as fast as the program takes it."""

    def __init__(self, fd: int, *, end_key: bytes | None) -> None:
        """fd: non-blocking, owned from now on. end_key: what means the end of input; None where closing fd does."""
        self._fd: int | None = fd
        self._end_key = end_key
        self._waiting = bytearray()
        self._is_armed = False
        self._is_ended = False
        self._failure: OSError | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def write(self, data: bytes) -> None:
        """Take in bytes, and wait while the program is far behind. Raises OSError once it takes no more."""
        if self._is_ended:
            raise BrokenPipeError("the input was ended")
        self._waiting += data
        self._flush()
        await self._has_room.wait()
        if self._failure is not None:
            raise self._failure

    async def end(self) -> None:
        """Let the program see the end of its input after all that was written. Raises as `write`."""
        if self._end_key is not None:
            await self.write(self._end_key)
            return
        self._is_ended = True
        self._flush()

    def close(self) -> None:
        """Drop what is not written yet."""
        self._is_ended = True
        self._waiting.clear()
        self._has_room.set()
        if self._fd is not None:
            self._disarm(self._fd)
            os.close(self._fd)
            self._fd = None

    def _flush(self) -> None:
        if self._fd is None:
            self._waiting.clear()
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting[:_CHUNK_BYTES])]
        except BlockingIOError:
            self._arm(self._fd)
        except OSError as error:
            self._failure = error
            self.close()
            return
        if not self._waiting:
            self._disarm(self._fd)
            if self._is_ended:
                self.close()
        if len(self._waiting) > _MAX_WAITING_BYTES:
            self._has_room.clear()
        else:
            self._has_room.set()

    def _arm(self, fd: int) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().add_writer(fd, self._flush)

    def _disarm(self, fd: int) -> None:
        if self._is_armed:
            self._is_armed = False
            asyncio.get_running_loop().remove_writer(fd)
