"""What this node keeps of live sandboxes: those being made and those that run. Who acts on one claims it first."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Engine

from core.metrics import LIVE_SANDBOXES
from repositories.attempts import ClaimedAttempt
from runtimes.base import Runtime, SandboxHandle
from services.attempt_control import AttemptControl
from services.attempt_writes import AttemptStatements
from workers.outputs import Entrypoint, OutputKeeper
from workers.snapshots import SnapshotKeeper
from workers.spare_members import SpareMembers

__all__ = ["KeeperParts", "KeptSandboxes", "LiveSandbox", "SandboxStart"]


@dataclass(frozen=True, slots=True)
class KeeperParts:
    """What those share who start, watch and end live sandboxes of one node.

    statements: commits each by itself. tell: called with a sandbox's id after each change. wake: has the keeper look.
    """

    attempts: AttemptStatements
    statements: Engine
    runtimes: Mapping[str, Runtime]
    node_id: UUID
    outputs: OutputKeeper
    snapshots: SnapshotKeeper
    tell: Callable[[UUID], None]
    wake: Callable[[], None]

    @property
    def actor(self) -> str:
        """Who acts, for the history."""
        return f"worker:{self.node_id}"


@dataclass(slots=True)
class SandboxStart:
    """A sandbox that is being made. is_given_up: its end is written, or being written, by a thread of the keeper.

    taken_at: when this worker took it, by the monotonic clock.

    A start cannot be called off: a pull takes what it takes. So one that nobody wants any more is ended without
    waiting for it, and whoever makes it takes away what comes of it.
    """

    claimed: ClaimedAttempt
    control: AttemptControl
    session_id: UUID
    taken_at: float = field(default_factory=time.monotonic)
    is_given_up: bool = False


@dataclass(slots=True)
class LiveSandbox:
    """A sandbox that runs here. is_busy: something is done about it now. session_id: under which it is held.

    taken_at: as of its start. is_held: it is about to be, or was, given to an attempt, which alone removes it then.
    removal_tries: in vain. next_try_at: its end is not tried before, by the monotonic clock.
    """

    claimed: ClaimedAttempt
    control: AttemptControl
    session_id: UUID
    runtime: Runtime
    handle: SandboxHandle
    entrypoint: Entrypoint
    taken_at: float
    is_busy: bool = False
    is_held: bool = False
    is_paused: bool = False
    obeyed: int = -1
    looked_at: float = field(default_factory=time.monotonic)
    removal_tries: int = 0
    next_try_at: float = 0.0


class KeptSandboxes:
    """Thread-safe."""

    def __init__(
        self,
        members: SpareMembers,
        *,
        on_end: Callable[[ClaimedAttempt], None],
        tell: Callable[[UUID], None],
        wake: Callable[[], None],
    ) -> None:
        """members: those of them that attempts may have. The rest: see SessionKeeper."""
        self._members = members
        self._on_end = on_end
        self._tell = tell
        self._wake = wake
        self._lock = threading.Lock()
        self._live: dict[UUID, LiveSandbox] = {}
        self._starting: dict[UUID, SandboxStart] = {}

    def __len__(self) -> int:
        """How many run."""
        with self._lock:
            return len(self._live)

    def has_some(self) -> bool:
        """Whether any runs or is being made."""
        with self._lock:
            return bool(self._live or self._starting)

    def begin(self, start: SandboxStart) -> None:
        """One is being made from now on."""
        with self._lock:
            self._starting[start.claimed.trial_id] = start

    def settle(self, start: SandboxStart) -> bool:
        """Take a start out of sight. False: it was given up meanwhile."""
        with self._lock:
            if self._starting.get(start.claimed.trial_id) is start:
                del self._starting[start.claimed.trial_id]
            return not start.is_given_up

    def give_up_unwanted(self) -> Collection[SandboxStart]:
        """Give up those being made that were asked to stop; gives them. Whoever makes one removes what comes of it."""
        with self._lock:
            unwanted = [start for start in self._starting.values() if start.control.stop.is_set()]
            for start in unwanted:
                del self._starting[start.claimed.trial_id]
                start.is_given_up = True
        return unwanted

    def add(self, live: LiveSandbox) -> None:
        """One runs from now on."""
        with self._lock:
            self._live[live.claimed.trial_id] = live
            LIVE_SANDBOXES.set(len(self._live))

    def find(self, trial_id: UUID) -> LiveSandbox | None:
        """Give the one with this id, if it runs here."""
        with self._lock:
            return self._live.get(trial_id)

    def idle(self) -> list[LiveSandbox]:
        """Those about which nothing is done now."""
        with self._lock:
            return [live for live in self._live.values() if not live.is_busy]

    def claim(self, live: LiveSandbox) -> bool:
        """Be the only one to do something about it, until it is released. False: somebody is already."""
        with self._lock:
            if live.is_busy:
                return False
            live.is_busy = True
            return True

    def release(self, live: LiveSandbox) -> None:
        """Let others do something about it."""
        live.is_busy = False

    def seize(self, live: LiveSandbox) -> bool:
        """Claim it for an attempt that may be given it. False: it is not to be had now."""
        with self._lock:
            if live.is_busy or live.is_paused or live.control.stop.is_set():
                return False
            live.is_busy = live.is_held = True
            return self._live.get(live.claimed.trial_id) is live

    def put_back(self, live: LiveSandbox) -> None:
        """It was not given away."""
        with self._lock:
            live.is_busy = live.is_held = False
        # What was wished of it meanwhile, or whoever has taken it from us, found it busy.
        self._wake()

    def is_ours(self, live: LiveSandbox) -> bool:
        """Whether nobody was given it, or is about to be."""
        with self._lock:
            return not live.is_held

    def forget(self, live: LiveSandbox) -> None:
        """Keep it no more: it is over, or an attempt's now, which has told the sweep so before."""
        with self._lock:
            self._live.pop(live.claimed.trial_id, None)
            LIVE_SANDBOXES.set(len(self._live))
        self._members.drop(live.claimed.trial_id)
        self._on_end(live.claimed)
        self._tell(live.claimed.trial_id)
