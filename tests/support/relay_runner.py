"""A program that no listing of processes finds alive: each instance starts the next in a session of its own, and ends.

Machine code, since an interpreter would be slow enough to be caught by its number.
"""

import struct

__all__ = ["MACHINE", "relay_runner"]

MACHINE = "x86_64"

_CODE = bytes.fromhex(
    "b839000000 0f05"  # again: fork()
    "85c0 7509"  # the parent goes to: end
    "b870000000 0f05"  # setsid()
    "ebec"  # to: again
    "b83c000000 31ff 0f05"  # end: exit(0)
)
_BASE, _START = 0x400000, 64 + 56


def relay_runner() -> bytes:
    """Give the program as an ELF file: one header, one segment, the code."""
    size = _START + len(_CODE)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _BASE + _START, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 4096)
    return identity + header + segment + _CODE
