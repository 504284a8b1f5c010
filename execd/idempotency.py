"""`Idempotency-Key`: a request that is repeated runs its command once."""

import json
from collections.abc import Callable
from typing import Any, Final

from execd.errors import IdempotencyKeyReusedError, InvalidQueryError
from execd.execution import Execution

__all__ = ["IdempotencyKeys"]

HEADER: Final = "Idempotency-Key"

_MAX_KEY_CHARACTERS: Final = 255
_DIGEST_BYTES: Final = 16


class IdempotencyKeys:
    """Which key stands for which command, as long as the command is remembered."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[bytes, Execution]] = {}
        self._keys: dict[str, str] = {}

    def get_or_start(self, key: str, document: Any, start: Callable[[], Execution]) -> Execution:
        """Give the command that this key started, or start it.

        document: the request's JSON. Raises InvalidQueryError, IdempotencyKeyReusedError, and what `start` raises;
        the key is free then.
        """
        if not (0 < len(key) <= _MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
            raise InvalidQueryError(f"{HEADER}: not 1 to {_MAX_KEY_CHARACTERS} printable ASCII characters")
        digest = _digest(document)
        entry = self._entries.get(key)
        if entry is None:
            execution = start()
            self._entries[key] = (digest, execution)
            self._keys[execution.id] = key
            return execution
        if entry[0] != digest:
            raise IdempotencyKeyReusedError(
                f"{HEADER}: was used for another request; take a new key for each request"
            )
        return entry[1]

    def forget(self, execution_id: str) -> None:
        """Free the key of a command."""
        key = self._keys.pop(execution_id, None)
        if key is not None:
            del self._entries[key]


def _digest(document: Any) -> bytes:
    # Not `hashlib`, which loads OpenSSL; and only when the first key comes.
    from _blake2 import blake2b  # noqa: PLC0415

    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES).digest()
