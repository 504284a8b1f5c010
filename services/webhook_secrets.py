"""Secrets of webhooks, in the form of Standard Webhooks: `whsec_` and 24 to 64 random bytes as base64."""

import base64
import binascii
import secrets
from uuid import UUID

from core.errors import InvalidRequestError

__all__ = ["check_secret", "make_secret", "seal_purpose"]

_PREFIX = "whsec_"
_MIN_BYTES = 24
_MAX_BYTES = 64
_NEW_BYTES = 32


def make_secret() -> str:
    """Make a secret."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def check_secret(text: str, *, field: str = "secret") -> None:
    """Raise InvalidRequestError, which never repeats it, for what is no secret."""
    try:
        size = len(base64.b64decode(text.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not text.startswith(_PREFIX) or not _MIN_BYTES <= size <= _MAX_BYTES:
        raise InvalidRequestError(
            f"must be '{_PREFIX}' and {_MIN_BYTES} to {_MAX_BYTES} random bytes as base64", field=field
        )


def seal_purpose(endpoint_id: UUID) -> str:
    """Say what a sealed secret is for, so that no endpoint's can be put in the place of another's."""
    return f"webhook/{endpoint_id}"
