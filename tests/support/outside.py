"""The host's side of security tests: what it sees of a sandbox, what a sandbox may not see of it."""

import os
import random
import socket
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from core.errors import ExecdUnreachableError
from runtimes.base import Command
from tests.support.sandboxes import Box

__all__ = ["background", "host_process", "host_processes", "listening_on_the_host", "sleep_mark"]


def sleep_mark() -> str:
    """Seconds to sleep that no other process sleeps."""
    return str(random.SystemRandom().randrange(10**8, 10**9))


def host_processes(mark: str) -> list[int]:
    """Numbers of the processes whose command line holds the mark, as the host sees them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                if mark.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def host_process(mark: str) -> int:
    """Wait for a process with the mark."""
    pause = threading.Event()
    for _ in range(500):
        found = host_processes(mark)
        if found:
            return found[0]
        pause.wait(0.01)
    pytest.fail(f"no process with {mark}")


class background:  # noqa: N801 -- reads as a phrase
    """Runs a command beside the test; entered once it wrote `until`, stopped at the end."""

    def __init__(self, box: Box, command: Command | str, until: bytes = b"") -> None:
        self.box = box
        self.command = Command(shell=command) if isinstance(command, str) else command
        self.until = until
        self.stop, self.ready = threading.Event(), threading.Event()
        self.seen = b""

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        if self.until:
            assert self.ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self.thread.join()

    def _run(self) -> None:
        def take(_stream: str, data: bytes) -> None:
            self.seen += data
            if self.until in self.seen:
                self.ready.set()

        # The test may remove the sandbox meanwhile.
        with suppress(ExecdUnreachableError):
            self.box.client.run(self.command, on_output=take, stop=self.stop, kill_grace_seconds=0)


class listening_on_the_host:  # noqa: N801
    """Sockets of every kind on the host, as targets for the network probe: (family, kind, address)."""

    def __enter__(self) -> list[list[Any]]:
        self.sockets: list[socket.socket] = []
        targets: list[list[Any]] = []
        for family, address in (("AF_INET", "127.0.0.1"), ("AF_INET6", "::1"), ("AF_INET", _host_address())):
            for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
                listener = socket.socket(getattr(socket, family), getattr(socket, kind))
                self.sockets.append(listener)
                try:
                    listener.bind((address, 0))
                except OSError:
                    continue
                if kind == "SOCK_STREAM":
                    listener.listen()
                targets.append([family, kind, list(listener.getsockname()[:2])])
        abstract = socket.socket(socket.AF_UNIX)
        self.sockets.append(abstract)
        name = f"sandmill-test-{uuid.uuid4().hex}"
        abstract.bind("\0" + name)
        abstract.listen()
        return [*targets, ["AF_UNIX", "SOCK_STREAM", name]]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self.sockets:
            opened.close()


def _host_address() -> str:
    """An address of this host that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
