"""Gives rows to the trials of large batches ahead of what can run, so that a batch of any size is accepted at once."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, Engine

from core.failpoints import failpoint
from core.ids import new_id
from core.logging import get_logger
from repositories.batch_progress import BatchProgressRepository
from repositories.materialising import MaterialisingRepository, Tail, TailPage
from services.early_ends import TAIL_FAILURES

__all__ = ["FIRST_PAGE", "Materialiser", "split_first_page"]

log = get_logger(__name__)

FIRST_PAGE = 1_000
"""Trials that the submission itself makes, so that small batches start at once; the first of each job in any case."""

PAGE = 5_000
"""Most trials made in one transaction: about a tenth of a second."""

WINDOW = 10_000
"""Unfinished trials with a row that a batch has at most by this: more than run before the next page comes."""

_BATCHES = 50
_JOBS = 1_000
_FIRST_ID = UUID(int=0)


def split_first_page(counts: Sequence[int], *, first_page: int = FIRST_PAGE) -> list[int]:
    """Say how many trials of each job are made at once. counts: of the jobs, in order, each at least 1."""
    room = max(0, first_page - len(counts))
    made = []
    for count in counts:
        more = min(count - 1, room)
        made.append(1 + more)
        room -= more
    return made


class Materialiser:
    """Makes trials page by page. A crash loses a page that was not committed; it is made again."""

    def __init__(self, engine: Engine, *, window: int = WINDOW, page: int = PAGE) -> None:
        """engine: its connections write events as the scheduler. window, page: see the constants."""
        self._engine = engine
        self._window = window
        self._page = page
        self._after = _FIRST_ID

    def advance(self) -> int:
        """Make a page of each of some batches; gives how many trials. Call again while it gives any."""
        with self._engine.begin() as connection:
            batches = MaterialisingRepository(connection).batches_with_tail(after=self._after, limit=_BATCHES)
        # Round and round, so that one batch whose turn never seems to end does not hold up those after it.
        self._after = batches[-1] if len(batches) == _BATCHES else _FIRST_ID
        made = 0
        for batch_id in batches:
            with self._engine.begin() as connection:
                made += self._make_page(connection, batch_id)
                failpoint("fanout.mid_page")
            failpoint("fanout.after_page")
        if made:
            log.debug("trials_made", count=made)
        return made

    def _make_page(self, connection: Connection, batch_id: UUID) -> int:
        if not BatchProgressRepository(connection).lock_batches([batch_id]):
            return 0
        repository = MaterialisingRepository(connection)
        room = self._window - repository.open_trials(batch_id, limit=self._window)
        pages = self._plan(repository.tails(batch_id, limit=_JOBS), room)
        if not pages:
            return 0
        ids = sorted(new_id() for _ in range(sum(page.count for page in pages)))
        return repository.make(pages, ids, TAIL_FAILURES)

    def _plan(self, tails: Sequence[Tail], room: int) -> list[TailPage]:
        """Share a page between jobs. What is made as ended takes no room.

        A batch that is full to the window waits until a tenth of it has room, rather than making a few in every tick.
        """
        waiting = sum(tail.count for tail in tails if tail.outcome is None)
        if room < min(waiting, self._window // 10):
            room = 0
        left = self._page
        pages = []
        for tail in tails:
            count = min(tail.count, left, left if tail.outcome is not None else room)
            if count > 0:
                pages.append(TailPage(tail.job_id, tail.next_index, count))
                left -= count
                room -= count if tail.outcome is None else 0
        return pages
