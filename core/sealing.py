"""Seals secrets that the database keeps, so that a copy of the database alone gives none away."""

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from core.config import Settings
from core.errors import NotSupportedError, SandmillError

__all__ = ["SealBrokenError", "SecretBox", "make_box"]

_NONCE_BYTES = 12
_DOMAIN = b"sandmill/seal/1\0"


class SealBrokenError(SandmillError):
    """A sealed secret cannot be read: it was sealed under another key, for another purpose, or was changed."""

    code = "seal_broken"

    def __init__(self) -> None:
        """Name the setting that decides."""
        super().__init__("a stored secret cannot be read: was SANDMILL_SECRET_KEY changed?")


class SecretBox:
    """AES-256-GCM under one key. Thread-safe."""

    def __init__(self, key: str | None) -> None:
        """key: SANDMILL_SECRET_KEY, of any length; None: every use raises NotSupportedError and names the setting."""
        self._cipher = None if key is None else AESGCM(hashlib.sha256(_DOMAIN + key.encode()).digest())

    def seal(self, secret: bytes, *, purpose: str) -> bytes:
        """Give the sealed form. purpose: what it is and whose; unsealing needs the same, so none can be swapped."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._require().encrypt(nonce, secret, purpose.encode())

    def unseal(self, sealed: bytes, *, purpose: str) -> bytes:
        """Give the secret. Raises SealBrokenError."""
        try:
            return self._require().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
        except InvalidTag as error:
            raise SealBrokenError from error

    def _require(self) -> AESGCM:
        if self._cipher is None:
            raise NotSupportedError(
                "this installation keeps no secrets: its operator has to set SANDMILL_SECRET_KEY"
            )
        return self._cipher


def make_box(settings: Settings) -> SecretBox:
    """Make the box of this installation."""
    return SecretBox(None if settings.secret_key is None else settings.secret_key.get_secret_value())
