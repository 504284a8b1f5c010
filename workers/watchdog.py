"""The watchdog: a process of its own that ends a node's sandboxes when their worker's lease is over.

A worker kills them by itself before that. One that is stopped, hangs, or was killed cannot; and before its trials run
anywhere else nothing of them may run here. It outlives the worker, ends by itself when nothing is left to watch, and
imports little: `python -m workers.watchdog FOLDER FACTS`, started by `workers.watching`.
"""

import fcntl
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import DaemonError
from runtimes.cgroups import CgroupTree
from runtimes.local.named_processes import kill_by_name
from runtimes.local.pausing import thaw_for_removal
from runtimes.local.records import Record, Records
from runtimes.processes import KILL_TIMEOUT_SECONDS, ProcessRef, kill_and_wait
from runtimes.raw_engine import RawEngine
from workers.identity import boot_id
from workers.lease_file import Lease, LeaseFile

__all__ = ["Facts", "Watchdog", "main"]

_LONGEST_PAUSE_SECONDS = 0.5
_PAUSE_AFTER_LAPSE_SECONDS = 0.1
_REMOVE_SECONDS = 2.0
_LOCK_TRIES = 5
_LOCK_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to watch. node: id in the labels of its sandboxes. build: of the sources it runs on.

    local: state folder of the local runtime, docker: the engine's socket; None: not on this node.
    """

    node: str
    build: str
    local: str | None
    cgroup_parent: str
    docker: str | None


class Watchdog:
    """Looks at the lease, and ends what it does not cover."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        """folder: the node's own, with the lease."""
        self._lease = LeaseFile(folder)
        self._facts = facts
        self._boot = boot_id()

    def run(self) -> None:
        """Watch until there is neither a lease, nor a worker that might get another, nor a sandbox."""
        while True:
            lease = self._lease.read()
            left = self._seconds_left(lease)
            if left > 0:
                time.sleep(min(left, _LONGEST_PAUSE_SECONDS))
                continue
            if self._end_sandboxes() == 0 and not _has_worker(lease):
                return
            time.sleep(_PAUSE_AFTER_LAPSE_SECONDS)

    def _seconds_left(self, lease: Lease | None) -> float:
        if lease is None or lease.boot != self._boot:
            return 0.0
        return lease.until - time.clock_gettime(time.CLOCK_BOOTTIME)

    def _end_sandboxes(self) -> int:
        """Kill and remove all that are there; gives how many are left."""
        left = 0
        if self._facts.local is not None:
            left += self._end_local(Path(self._facts.local))
        if self._facts.docker is not None:
            left += self._end_docker(self._facts.docker)
        return left

    def _end_local(self, state: Path) -> int:
        folder = state / "sandboxes"
        if not folder.is_dir():
            return 0
        records = Records(folder)
        ours = [record for record in records.all() if self._is_ours(record.labels)]
        tree = CgroupTree(self._facts.cgroup_parent)
        # All are killed before the first is cleared away: what counts is that nothing runs.
        for record in ours:
            _kill(tree, record)
        left = 0
        for record in ours:
            try:
                _clear(tree, record)
            except (OSError, DaemonError) as error:
                _say(f"sandbox {record.name} could not be removed: {error}")
                left += 1
            else:
                (state / "sockets" / str(record.slot)).unlink(missing_ok=True)
                records.forget(record)
                _say(f"sandbox {record.name} was ended: its worker's lease is over")
        return left

    def _end_docker(self, socket_path: str) -> int:
        engine = RawEngine(socket_path)
        try:
            names = engine.labelled("sandmill.node", self._facts.node)
        except OSError as error:
            _say(f"the engine does not answer: {error}")
            return 1
        left = engine.remove_all(names)
        if names:
            _say(f"containers ended since their worker's lease is over: {len(names) - left}")
        return left

    def _is_ours(self, labels: object) -> bool:
        return isinstance(labels, dict) and labels.get("sandmill.node") == self._facts.node


def _kill(tree: CgroupTree, record: Record) -> None:
    """Kill everything in a sandbox, also where it stands still."""
    group = tree.find(record.name)
    group.kill()
    thaw_for_removal(group)
    if record.init is not None and record.init.is_alive:
        with suppress(ProcessLookupError):
            os.kill(record.init.pid, 9)


def _clear(tree: CgroupTree, record: Record) -> None:
    """Wait until nothing of it is left, and remove its groups. Raises OSError, DaemonError."""
    if record.init is None:
        kill_by_name(record.name)
    elif not kill_and_wait(record.init, timeout_seconds=KILL_TIMEOUT_SECONDS):
        raise DaemonError(f"process {record.init.pid} does not die")
    tree.find(record.name).remove(timeout_seconds=_REMOVE_SECONDS)


def _has_worker(lease: Lease | None) -> bool:
    """Whether the worker of the last lease lives, stopped or not: it may make another sandbox before it notices."""
    return lease is not None and ProcessRef(lease.pid, lease.started).is_alive


def _try_lock(descriptor: int) -> bool:
    """Take the lock unless another watchdog has it. Who only asks whether there is one holds it for a moment."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return True
    return False


def _say(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"watchdog: {line}\n")
        sys.stderr.flush()


def main(arguments: list[str]) -> None:
    """Run, unless another watchdog of this folder does."""
    folder = Path(arguments[0])
    facts = Facts(**json.loads(arguments[1]))
    lock = os.open(folder / "watchdog.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _try_lock(lock):
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"pid": os.getpid(), "facts": asdict(facts)}).encode(), 0)
    with suppress(OSError):
        # Who watches over what uses up memory should not be what the kernel takes for it.
        Path("/proc/self/oom_score_adj").write_text("-1000")
    Watchdog(folder, facts).run()


if __name__ == "__main__":
    main(sys.argv[1:])
