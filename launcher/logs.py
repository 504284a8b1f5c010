"""One log file per child: rotated at each start of the stack and bounded while it runs."""

import os
import shutil
from pathlib import Path

__all__ = ["MAX_LOG_BYTES", "bound_log", "last_lines", "rotate_log"]

MAX_LOG_BYTES = 32 * 1024 * 1024
"""A log that grows past this is moved to NAME.log.1: two of them per child are kept at most."""

_TAIL_BYTES = 4096


def rotate_log(path: Path) -> None:
    """Keep the log of the last run as NAME.log.1, so that a start does not bury why the last one ended."""
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))


def bound_log(path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Move the content to NAME.log.1 once it is larger than max_bytes; says whether it was.

    The child keeps its descriptor, so the content is copied and the file cut. The descriptor is open for appending,
    so the child goes on at the new end. What is written between copy and cut is lost.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except FileNotFoundError:
        return False
    return True


def last_lines(path: Path, *, count: int = 3) -> str:
    """Last non-empty lines of a log joined by ` | `, or an empty string."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:])
