"""Loading and trying out everything, for a process that forks many daemons: they then share its memory, and are quick.

The bundle does not need it.
"""

import asyncio
import contextlib
import importlib
import os
import socket

from execd.limits import Limits
from execd.options import Options
from execd.reaper import Reaper
from execd.server import Server
from execd.service import Service

__all__ = ["answer_once", "warm_up"]

_LATE_MODULES = (
    # What the library loads only when it is needed, from files that a daemon inside a sandbox could not see.
    "concurrent.futures.thread", "ctypes", "encodings.ascii", "encodings.idna", "encodings.latin_1",
    "encodings.unicode_escape", "encodings.utf_8", "linecache", "stringprep", "traceback", "unicodedata", "warnings",
)  # fmt: skip

_NOT_OF_THE_DAEMON = ("__", "bundle", "elf")
"""Beginnings of the modules that are programs, or that build the bundle."""

_REQUEST = b"GET /ping HTTP/1.1\r\nHost: execd\r\nConnection: close\r\n\r\n"


def warm_up() -> None:
    """Import all there is and answer one request, in this process and thread; nothing of it stays running."""
    for name in _LATE_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for entry in os.scandir(os.path.dirname(__file__)):
        name, dot, ending = entry.name.rpartition(".")
        if dot and ending == "py" and not name.startswith(_NOT_OF_THE_DAEMON):
            importlib.import_module(f"execd.{name}")
    answer_once()


def answer_once() -> None:
    """Answer one request, as the first thing of a daemon's life."""
    asyncio.run(_answer_once())


async def _answer_once() -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    listener.setblocking(False)
    address = listener.getsockname()
    limits = Limits()
    service = Service(Options(), {}, limits, Reaper())
    server = Server(service.routes.handle, limits)
    await server.start(listener)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, _REQUEST)
        while await loop.sock_recv(client, 4096):
            pass
    await server.stop(grace_seconds=0)
