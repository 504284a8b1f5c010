"""Worker processes by fork: real ones, without Celery, that start in a tenth of a second and may be killed anywhere.

One process imports everything and then only forks, so that no thread is ever forked along. Run as a program it reads
a JSON line per worker and answers with its process id.
"""

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

__all__ = ["Nursery", "running_nursery"]

_STOPS = (signal.SIGTERM, signal.SIGINT)


class Nursery:
    """The test's side."""

    def __init__(self, process: "subprocess.Popen[str]", settings: Mapping[str, str]) -> None:
        self._process = process
        self._settings = dict(settings)

    def worker(self, home: Path, *, failpoints: str = "", dies_in: str = "", **settings: str) -> int:
        """Start one; gives its process id. dies_in: `module:Class.method`, killed at the first call of it."""
        order = {
            "home": str(home),
            "settings": {**self._settings, **settings},
            "failpoints": failpoints,
            "dies_in": dies_in,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self, pid: int, seconds: float = 60.0) -> None:
        """Wait for a worker's end."""
        deadline = time.monotonic() + seconds
        while Path(f"/proc/{pid}").exists():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGUSR1)  # it says where it stands
                raise AssertionError("the worker has not ended")
            time.sleep(0.01)

    def end(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Signal a worker and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        self.wait(pid)


@contextlib.contextmanager
def running_nursery(log: Path, **settings: str) -> Iterator[Nursery]:
    """Run the program. log: gets what workers say. settings: of all workers, by field."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY,
        )  # fmt: skip
    with process:
        try:
            yield Nursery(process, settings)
        finally:
            # At the end of its input it kills the workers that are left.
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


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
