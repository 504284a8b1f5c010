"""Folders in every sandbox that are the kernel's or execd's."""

from runtimes.bundle import BUNDLE_MOUNT

__all__ = ["reserved_folder"]

_FOLDERS = frozenset({"/dev", "/proc", "/sys", BUNDLE_MOUNT})


def reserved_folder(path: str) -> str:
    """Give the folder in which an absolute path without `..` would cover something, else nothing."""
    first = "/" + next((name for name in path.split("/") if name not in ("", ".")), "")
    return first if first in _FOLDERS else ""
