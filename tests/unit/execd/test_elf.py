"""Reading and changing ELF files, on small ones made here: no toolchain of another architecture is needed."""

import struct
from pathlib import Path

import pytest

from execd.elf import ElfError, program_interpreter, without_run_path

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_NEEDED, DT_RPATH, DT_SYMTAB, DT_RUNPATH = 0, 1, 15, 6, 29


def elf(*segments: tuple[int, bytes]) -> bytes:
    """A 64-bit little-endian file with these parts behind its program header table."""
    table = b""
    content = b""
    start = 64 + 56 * len(segments)
    for kind, data in segments:
        table += struct.pack("<IIQQQQQQ", kind, 4, start + len(content), 0, 0, len(data), len(data), 8)
        content += data
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)  # fmt: skip  # noqa: E501
    return head + table + content


def dynamic(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *entry) for entry in entries)


@pytest.mark.parametrize(
    "loader", ["/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-aarch64.so.1"]
)
def test_loader_of_every_architecture_is_found(tmp_path: Path, loader: str) -> None:
    program = tmp_path / "program"
    program.write_bytes(elf((PT_LOAD, b"code"), (PT_INTERP, loader.encode() + b"\0")))
    assert program_interpreter(program) == Path(loader)


def test_static_program_has_no_loader(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(elf((PT_LOAD, b"code")))
    with pytest.raises(ElfError, match="statically linked"):
        program_interpreter(program)


@pytest.mark.parametrize(
    "image",
    [b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x02" + bytes(60)],
    ids=["script", "32-bit", "big-endian"],
)
def test_other_files_are_refused(tmp_path: Path, image: bytes) -> None:
    (tmp_path / "file").write_bytes(image)
    with pytest.raises(ElfError, match="not a 64-bit little-endian"):
        program_interpreter(tmp_path / "file")
    with pytest.raises(ElfError, match="not a 64-bit little-endian"):
        without_run_path(image, Path("file"))


@pytest.mark.parametrize("tag", [DT_RPATH, DT_RUNPATH])
def test_run_path_is_dropped_and_nothing_else(tag: int) -> None:
    entries = [(DT_NEEDED, 1), (tag, 77), (DT_SYMTAB, 4096), (DT_NULL, 0), (DT_NULL, 0)]
    kept = [entry for entry in entries if entry[0] != tag]
    before = elf((PT_LOAD, b"code"), (PT_DYNAMIC, dynamic(*entries)), (PT_LOAD, b"data"))
    after = elf((PT_LOAD, b"code"), (PT_DYNAMIC, dynamic(*kept, (DT_NULL, 0))), (PT_LOAD, b"data"))
    assert without_run_path(before, Path("lib")) == after


def test_program_without_a_dynamic_part_is_left_alone() -> None:
    image = elf((PT_LOAD, b"code"))
    assert without_run_path(image, Path("program")) == image
