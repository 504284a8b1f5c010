"""Has imported every program of the stack and forks to start one: in milliseconds, to be killed like any other.

`python -m tests.chaos.nursery` reads one JSON line per order from stdin and answers each on stdout; it tells of every
child that ended. When stdin ends, all children are killed.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
from typing import Any

from tests.chaos.programs import PROGRAMS

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve until stdin ends."""
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    gc.freeze()
    children: set[int] = set()
    pending = b""
    _tell({"ready": True})
    try:
        while True:
            readable, _, _ = select.select([0, wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                _reap(children)
            if 0 in readable:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    pid = _start(json.loads(line))
                    children.add(pid)
                    _tell({"pid": pid})
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _reap(children: set[int]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children:
            children.discard(pid)
            # What it leaves in its group, as the supervisor of a real stack does.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _tell({"ended": pid, "status": status})


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(order)
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the child must not go on as a second nursery
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [order["program"]]
    PROGRAMS[order["program"]](order.get("chaos") or {})


if __name__ == "__main__":
    main()
