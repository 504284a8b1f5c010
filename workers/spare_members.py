"""The free members for jobs that this node keeps, by what they are: found without asking the database."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from uuid import UUID

from repositories.job_members import Member
from runtimes.base import SandboxHandle

__all__ = ["Spare", "SpareMembers"]

_REMEMBER_SECONDS = 3600.0
"""So long after the last of its members was here a pool is still one that an attempt could have been given one by."""
_MOST_KINDS = 1000

_Kind = tuple[int, str, str]
"""Tenant, runtime, sandbox key."""


@dataclass(frozen=True, slots=True)
class Spare:
    """One free member. taken_at: since when this worker has it, by the monotonic clock.

    seize: keep everybody else of this node from it; False: something is done about it now. The others follow on that,
    one of them once: see `HeldMember`.
    """

    kind: _Kind
    handle: SandboxHandle
    member: Member
    seize: Callable[[], bool]
    put_back: Callable[[], None]
    gone: Callable[[], None]
    end: Callable[[], None]
    taken_at: float = field(default_factory=time.monotonic)

    @property
    def held_seconds(self) -> float:
        """For how long it has been running, adoptions included."""
        return self.member.claimed.elapsed_seconds + time.monotonic() - self.taken_at


class SpareMembers:
    """Implements `MemberSource`. Thread-safe."""

    def __init__(self, *, tell: Callable[[], None]) -> None:
        """tell: called when one was given away."""
        self._tell = tell
        self._lock = threading.Lock()
        self._spares: dict[_Kind, dict[UUID, Spare]] = {}
        self._seen: OrderedDict[_Kind, float] = OrderedDict()

    def put(self, spare: Spare) -> None:
        """Offer one."""
        with self._lock:
            self._spares.setdefault(spare.kind, {})[spare.member.claimed.trial_id] = spare
            self._note(spare.kind)

    def drop(self, trial_id: UUID) -> None:
        """Offer it no more; no error if it was not offered."""
        with self._lock:
            for kind, spares in list(self._spares.items()):
                if spares.pop(trial_id, None) is not None:
                    self._note(kind)
                    if not spares:
                        del self._spares[kind]
                    return

    def hold(self, tenant_id: int, runtime: str, key: str, *, but: Collection[UUID] = ()) -> Spare | None:
        """Give the free member that is here for longest, but none of these; None: there is none now."""
        if not self._spares:
            return None
        with self._lock:
            spares = list(self._spares.get((tenant_id, runtime, key), {}).values())
        for spare in spares:
            if spare.member.claimed.trial_id not in but and spare.seize():
                return spare
        return None

    def has_pool(self, tenant_id: int, runtime: str, key: str) -> bool:
        """Whether members of that kind were here lately."""
        if not self._seen:
            return False
        with self._lock:
            at = self._seen.get((tenant_id, runtime, key))
        return at is not None and time.monotonic() - at < _REMEMBER_SECONDS

    def note_taken(self) -> None:
        """One was given away: somebody should fill its pool up."""
        self._tell()

    def _note(self, kind: _Kind) -> None:
        self._seen[kind] = time.monotonic()
        self._seen.move_to_end(kind)
        if len(self._seen) > _MOST_KINDS:
            self._seen.popitem(last=False)
