"""Diffs made by the standard library, as input for the patch tests."""

import difflib

__all__ = ["NUMBERS", "diff"]

NUMBERS = b"".join(b"line %d\n" % number for number in range(1, 31))


def diff(old: bytes, new: bytes, name: bytes = b"f.py", context: int = 3) -> bytes:
    """Give what `diff -u` writes, line ends and missing ones at the end included."""

    def lines(data: bytes) -> list[bytes]:
        parts = data.split(b"\n")
        return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])

    names = (b"a/" + name, b"b/" + name)
    made = difflib.diff_bytes(difflib.unified_diff, lines(old), lines(new), *names, n=context)
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in made
    )
