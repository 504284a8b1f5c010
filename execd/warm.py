"""Loading everything, for a process that forks many daemons: they then share its memory. And what to try it out with.

The bundle does not need it.
"""

import contextlib
import importlib
import os

__all__ = ["PING", "RUN_TRUE", "warm_up"]

_LATE_MODULES = (
    # What the library loads only when it is needed, from files that a daemon inside a sandbox could not see.
    "_blake2", "concurrent.futures.thread", "ctypes", "encodings.ascii", "encodings.idna", "encodings.latin_1",
    "encodings.unicode_escape", "encodings.utf_8", "linecache", "stringprep", "traceback", "unicodedata", "warnings",
)  # fmt: skip

_NOT_OF_THE_DAEMON = ("__", "bundle", "elf")
"""Beginnings of the modules that are programs, or that build the bundle."""

PING = b"GET /ping HTTP/1.1\r\nHost: execd\r\nConnection: close\r\n\r\n"

RUN_TRUE = (
    b"POST /command HTTP/1.1\r\nHost: execd\r\nContent-Type: application/json\r\n"
    b'Content-Length: 17\r\n\r\n{"argv":["true"]}'
)
"""A request for a command, as clients of ours send it, that most images can run."""


def warm_up() -> None:
    """Import all there is; nothing of it is running then."""
    for name in _LATE_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for entry in os.scandir(os.path.dirname(__file__)):
        name, dot, ending = entry.name.rpartition(".")
        if dot and ending == "py" and not name.startswith(_NOT_OF_THE_DAEMON):
            importlib.import_module(f"execd.{name}")
