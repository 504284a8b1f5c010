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

__all__ = ["PING", "answer_once", "warm_up"]

_LATE_MODULES = (
    # What the library loads only when it is needed, from files that a daemon inside a sandbox could not see.
    "_blake2", "concurrent.futures.thread", "ctypes", "encodings.ascii", "encodings.idna", "encodings.latin_1",
    "encodings.unicode_escape", "encodings.utf_8", "linecache", "stringprep", "traceback", "unicodedata", "warnings",
)  # fmt: skip

_NOT_OF_THE_DAEMON = ("__", "bundle", "elf")
"""Beginnings of the modules that are programs, or that build the bundle."""

PING = b"GET /ping HTTP/1.1\r\nHost: execd\r\nConnection: close\r\n\r\n"


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
    """Answer one request, as the first thing of a daemon's life, and end."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        listener.setblocking(False)
        # Asked before there is a loop: what a client does is no part of it.
        client.connect(listener.getsockname())
        client.sendall(PING)
        asyncio.run(_serve_once(listener, client))


async def _serve_once(listener: socket.socket, client: socket.socket) -> None:
    limits = Limits()
    service = Service(Options(), {}, limits, Reaper())
    server = Server(service.routes.handle, limits)
    await server.start(listener)
    is_answered = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(client, is_answered.set)
    await is_answered.wait()
    loop.remove_reader(client)
    service.prepare()
    await server.stop(grace_seconds=1)
