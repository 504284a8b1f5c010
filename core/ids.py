"""Identifiers: UUIDv7, made before the insert, so that a client knows the id and indexes stay local."""

import os
import re
import time
from typing import Final
from uuid import UUID

__all__ = ["new_id", "read_id"]

_SPELLING: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def new_id() -> UUID:
    """Make a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits. Source: RFC 9562, section 5.7."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def read_id(text: str) -> UUID | None:
    """Read an id in its one spelling, lower case with dashes; None for anything else, also if it is a UUID."""
    return UUID(text) if _SPELLING.fullmatch(text) else None
