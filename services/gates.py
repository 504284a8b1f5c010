"""Caps of a batch: only as many of its trials may be dispatched as the caps leave room for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from repositories.gates import BatchCaps, GateRepository, LabelGroup

__all__ = ["CapCount", "Gates"]

_BATCHES_PER_TICK = 200
"""Most batches looked at in one tick; the next one goes on behind them."""
_GROUPS_PER_TICK = 2000
"""Most groups of equal labels looked at in one tick, over all batches, as long as each gets a few."""
_FIRST = UUID(int=0)


class CapCount:
    """Counts a batch's trials against its caps."""

    def __init__(self, caps: BatchCaps, groups: Iterable[LabelGroup]) -> None:
        """groups: what was admitted and has not ended."""
        self._caps = caps
        self._count = 0
        self._by_label: Counter[tuple[str, str]] = Counter()
        for group in groups:
            self._add(group.labels, group.count)

    def room(self, limit: int) -> int:
        """How many more fit under `max_running`; at most `limit`."""
        most = self._caps.max_running
        return limit if most is None else min(limit, most - self._count)

    def admit(self, labels: Mapping[str, str]) -> bool:
        """Count one more trial, if all caps leave room for it."""
        if self.room(1) <= 0:
            return False
        caps = self._caps.max_per_label
        if any(self._by_label[name, value] >= caps[name] for name, value in labels.items() if name in caps):
            return False
        self._add(labels, 1)
        return True

    def _add(self, labels: Mapping[str, str], number: int) -> None:
        self._count += number
        for name, value in labels.items():
            self._by_label[name, value] += number


class Gates:
    """Admits trials of capped batches. One per dispatcher; remembers which batch it looked at last."""

    def __init__(self) -> None:
        """Start with the oldest batch."""
        self._after = _FIRST

    def open(self, connection: Connection, *, limit: int) -> int:
        """Admit what the caps leave room for, at most `limit` per batch; gives how many.

        The dispatch lock is held, so that what is counted here still holds when the queue is looked at next.
        """
        repository = GateRepository(connection)
        caps = repository.waiting(after=self._after, limit=_BATCHES_PER_TICK)
        self._after = max(caps) if len(caps) == _BATCHES_PER_TICK else _FIRST
        if not caps:
            return 0
        admitted = repository.admitted(list(caps))
        counts = {batch: CapCount(caps[batch], admitted.get(batch, ())) for batch in caps}
        rooms = {batch: count.room(limit) for batch, count in counts.items() if count.room(limit) > 0}
        chosen = [
            trial.id
            for trial in repository.first_waiting(_pages(repository, rooms))
            if counts[trial.batch_id].admit(trial.labels)
        ]
        return repository.admit(chosen) if chosen else 0


def _pages(repository: GateRepository, rooms: Mapping[UUID, int]) -> Sequence[tuple[UUID, int, int]]:
    """Say how many trials to read of which group: enough to fill the room, without reading it once per group."""
    if not rooms:
        return []
    groups = repository.groups(list(rooms), limit=max(16, _GROUPS_PER_TICK // len(rooms)))
    number_of = Counter(batch for batch, _ in groups)
    return [
        (batch, group, min(rooms[batch], max(1, 4 * rooms[batch] // number_of[batch])))
        for batch, group in groups
    ]
