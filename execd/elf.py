"""What the bundle builder needs to know about ELF files: their loader, their libraries, and where those lie."""

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["ElfError", "needed_libraries", "program_interpreter", "without_run_path"]

_PT_DYNAMIC: Final = 2
_PT_INTERP: Final = 3
_DT_NULL: Final = 0
_DT_RPATH: Final = 15
_DT_RUNPATH: Final = 29
_LISTED = re.compile(r"^\s*(?:(\S+) => )?(/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found$", re.MULTILINE)


class ElfError(Exception):
    """The file is not a dynamically linked 64-bit program, or one of its libraries is missing."""


def program_interpreter(program: Path) -> Path:
    """Give the dynamic loader a program asks for. Raises ElfError."""
    image = program.read_bytes()
    for kind, offset, size in _segments(image, program):
        if kind == _PT_INTERP:
            return Path(image[offset : offset + size].rstrip(b"\0").decode())
    raise ElfError(f"{program} is statically linked")


def without_run_path(image: bytes, name: Path) -> bytes:
    """Give a program or library that names no folder of its libraries. name: for messages. Raises ElfError."""
    for kind, offset, size in _segments(image, name):
        if kind == _PT_DYNAMIC:
            kept = [
                entry
                for entry in struct.iter_unpack("<QQ", image[offset : offset + size])
                if entry[0] not in (_DT_RPATH, _DT_RUNPATH)
            ]
            table = b"".join(struct.pack("<QQ", *entry) for entry in kept)
            # The table ends at its first empty entry; what is left over becomes more of them.
            return image[:offset] + table.ljust(size, _DT_NULL.to_bytes(1, "little")) + image[offset + size :]
    return image


def _segments(image: bytes, name: Path) -> Iterator[tuple[int, int, int]]:
    """Give (kind, offset, size in the file) of each part that is mapped. Raises ElfError."""
    if image[:5] != b"\x7fELF\x02" or image[5] != 1:
        raise ElfError(f"{name} is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", image, 32)
    entry_size, entries = struct.unpack_from("<HH", image, 54)
    for index in range(entries):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, table + index * entry_size)
        yield kind, offset, size


def needed_libraries(binary: Path, loader: Path) -> dict[str, Path]:
    """Give all libraries the loader would map for a binary, by name. Raises ElfError."""
    result = subprocess.run(
        [loader, "--list", binary],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"LC_ALL": "C"},
    )
    missing = _MISSING.findall(result.stdout)
    if result.returncode != 0 or missing:
        raise ElfError(f"{binary}: libraries not found: {', '.join(missing) or result.stderr.strip()}")
    return {name or Path(path).name: Path(path) for name, path in _LISTED.findall(result.stdout)}
