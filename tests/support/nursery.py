"""Worker processes by fork: real ones, without Celery, that start in a tenth of a second and may be killed anywhere.

One process imports everything and then only forks, so that no thread is ever forked along. Run as a program it reads
a JSON line per worker and answers with its process id; at the end of its input it kills those that are left.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

__all__ = ["Nursery", "running_nursery"]

_STOPS = (signal.SIGTERM, signal.SIGINT)


class Nursery:
    """The test's side: the workers of one test. log: gets what they say. settings: of all of them, by field."""

    def __init__(self, log: Path, settings: Mapping[str, str]) -> None:
        self._log = log
        self._settings = dict(settings)
        self._pids: list[int] = []

    def worker(self, home: Path, *, failpoints: str = "", dies_in: str = "", **settings: str) -> int:
        """Start one; gives its process id. dies_in: `module:Class.method`, killed at the first call of it."""
        order = {
            "home": str(home),
            "settings": {**self._settings, **settings},
            "failpoints": failpoints,
            "dies_in": dies_in,
            "log": str(self._log),
            "environment": dict(os.environ),
        }
        self._pids.append(_forker().fork(order))
        return self._pids[-1]

    def wait(self, pid: int, seconds: float = 60.0) -> None:
        """Wait for a worker's end."""
        deadline = time.monotonic() + seconds
        while _forker().is_parent_of(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGUSR1)  # it says where it stands
                raise AssertionError("the worker has not ended")
            time.sleep(0.01)

    def end(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Signal a worker and wait for its end."""
        if _forker().is_parent_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.wait(pid)

    def close(self) -> None:
        """Kill the workers that are left."""
        for pid in self._pids:
            self.end(pid)


@contextlib.contextmanager
def running_nursery(log: Path, **settings: str) -> Iterator[Nursery]:
    """Have workers forked until the block ends."""
    log.touch()
    nursery = Nursery(log, settings)
    try:
        yield nursery
    finally:
        nursery.close()


class _Forker:
    """The process that forks, for all tests of this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        )  # fmt: skip
        atexit.register(self._close)

    def fork(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def is_parent_of(self, pid: int) -> bool:
        """Whether there still is this worker: its number may be another process's by now."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return int(text.rpartition(")")[2].split()[1]) == self._process.pid

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@cache
def _forker() -> _Forker:
    return _Forker()


def _serve() -> None:
    children: set[int] = set()
    # Until a worker is ready for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    signal.signal(signal.SIGCHLD, lambda *_: _collect(children))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What a worker starts must not hold the test's pipe open.
    os.dup2(2, 1)
    os.set_inheritable(answers.fileno(), False)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _be_worker(order)
        children.add(pid)
        answers.write(f"{pid}\n")
    for pid in list(children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _collect(children: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            children.discard(pid)


def _be_worker(order: dict[str, Any]) -> None:
    try:
        _run_worker(order)
    except BaseException:  # noqa: BLE001 -- the end of the process, whatever it was
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        os._exit(1)


def _run_worker(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    faulthandler.register(signal.SIGUSR1)
    from core import failpoints  # noqa: PLC0415
    from core.config import Settings  # noqa: PLC0415
    from workers.identity import NodeIdentity  # noqa: PLC0415
    from workers.node import NodeWorker  # noqa: PLC0415
    from workers.process import build_runtimes  # noqa: PLC0415

    asked: list[int] = []
    for number in _STOPS:
        signal.signal(number, lambda number, _frame: asked.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    settings = Settings(home=Path(order["home"]), **order["settings"])
    identity = NodeIdentity(settings.home_path / "node")
    node = NodeWorker(settings, identity, build_runtimes(settings))
    failpoints.arm(failpoints.parse_failpoints(order["failpoints"]))
    if order["dies_in"]:
        _die_in(order["dies_in"])
    node.start()
    while not asked:
        time.sleep(0.02)
    if asked[0] == signal.SIGTERM:
        node.hand_over()
    node.drain()
    while len(node._registry):
        time.sleep(0.02)
    node.stop()
    os._exit(0)


def _die_in(place: str) -> None:
    import importlib  # noqa: PLC0415

    module, _, path = place.partition(":")
    class_name, _, method = path.partition(".")
    owner = getattr(importlib.import_module(module), class_name)
    original = getattr(owner, method)

    def die(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, die)


def _preload() -> None:
    import docker  # noqa: F401, PLC0415

    import workers.process  # noqa: F401, PLC0415


if __name__ == "__main__":
    _preload()
    _serve()
