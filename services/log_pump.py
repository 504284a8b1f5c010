"""From a command's output to stored, numbered, published chunks.

One LogPump per attempt numbers the chunks at the source; one LogWriter per worker stores the chunks of all attempts
in one insert, then publishes them. Persist first, then publish: what a live reader saw is in the store.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.failpoints import failpoint
from core.logging import get_logger
from repositories.log_chunks import Chunk, LogChunkRepository, StoredLog
from services.attempt_journal import DROPPED, Spool

__all__ = ["LogPump", "LogSummary", "LogWriter"]

log = get_logger(__name__)

_CHUNK_BYTES = 64 << 10
_PENDING_BYTES = 512 << 10
"""Unstored output at which a pump makes its command wait. If this process dies, it has to be fetched again: with what
is on its way to here it is less than execd keeps for that."""

_SPOOL_FACTOR = 4
"""How much longer than what it holds a spool may get before it is written anew."""

_LINGER_SECONDS = 0.02
"""How long the writer gathers before it stores: far below what a reader notices, enough for many lines."""

_BATCH_BYTES = 8 << 20
"""What one statement stores, of all attempts together, give or take a chunk: what it may cost in memory and time."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What `log_heads` keeps: the number of chunks, the bytes stored and those dropped from the middle."""

    next_seq: int
    stored_bytes: int
    truncated_bytes: int


@dataclass(slots=True)
class _Piece:
    step: str
    stream: str
    at: datetime
    data: bytearray


class LogPump:
    """Takes the output of one attempt in order. Safe with one writing thread and the writer's thread.

    Beyond `cap_bytes` the first and the last half are kept: the tail is held here and stored on close. What is held is
    also put on a spool, if there is one, from which the next worker of the node can restore it.
    """

    def __init__(
        self,
        attempt_id: UUID,
        trial_id: UUID,
        fence: int,
        *,
        cap_bytes: int,
        wake: Callable[[], None],
        spool: Spool | None = None,
    ) -> None:
        """wake: called when there is something to store. spool: closed by `close` and `abandon`."""
        self._ids = (attempt_id, trial_id, fence)
        self._head_bytes = cap_bytes // 2
        self._tail_bytes = cap_bytes - self._head_bytes
        self._wake = wake
        self._changed = threading.Condition()
        self._pending: deque[_Piece] = deque()
        self._pending_bytes = 0
        self._tail: deque[_Piece] = deque()
        self._in_tail = 0
        self._seq = 0
        self._taken_bytes = 0
        self._in_head = 0
        self._truncated = 0
        self._storing = False
        self._abandoned = False
        self._spool = spool
        self._spooled: Counter[str] = Counter()
        self._resumed: Counter[str] = Counter()

    def resume(self, stored: StoredLog) -> None:
        """Go on behind what another worker has stored, and held back. Call it before anything is written."""
        total = sum(stored.step_bytes.values())
        self._seq, self._taken_bytes = stored.next_seq, total
        self._in_head = min(total, self._head_bytes)
        self._resumed.update(stored.step_bytes)
        for step, stream, data in self._spool.pieces() if self._spool else ():
            if stream == DROPPED:
                self._truncated += int(data)
                self._spooled[step] += int(data)
                continue
            self._in_tail += _append(self._tail, step, stream, data)
            self._spooled[step] += len(data)
            self._trim_tail()
        self._resumed += self._spooled
        # If it came so far, the tail was being stored, from its beginning.
        self._forget_tail(total - self._in_head)

    def offset_of(self, step: str) -> int:
        """Say how many bytes of a step's output another worker has taken."""
        return self._resumed[step]

    def note(self, step: str, stream: str, data: bytes) -> None:
        """Add what we say ourselves, but for as much of it as another worker has said already."""
        known = min(len(data), self._resumed[step])
        self._resumed[step] -= known
        self.write(step, stream, data[known:])

    def note_missing(self, count: int) -> None:
        """Count output that could not be had any more."""
        self._truncated += count

    def write(self, step: str, stream: str, data: bytes) -> None:
        """Add output. Blocks while too much of it waits to be stored, so that the command waits, too."""
        if not data:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._pending_bytes < _PENDING_BYTES or self._abandoned)
            room = self._head_bytes - self._in_head
            if room > 0:
                self._in_head += len(data[:room])
                self._pending_bytes += _append(self._pending, step, stream, data[:room])
            if len(data) > room:
                self._await_head()
                self._hold(step, stream, data[max(room, 0) :])
        self._wake()

    def _await_head(self) -> None:
        """Put nothing on the spool while what came before it is in memory alone.

        Who resumes counts what is stored and what is on the spool; a hole between the two would shift all that follows.
        """
        if self._spool is not None and (self._pending or self._storing):
            self._wake()
            self._changed.wait_for(lambda: self._abandoned or not (self._pending or self._storing))

    def _hold(self, step: str, stream: str, data: bytes) -> None:
        self._in_tail += _append(self._tail, step, stream, data)
        self._trim_tail()
        if self._spool is None:
            return
        self._spooled[step] += len(data)
        if self._spool.size_bytes < _SPOOL_FACTOR * self._tail_bytes:
            self._spool.append(step, stream, data)
            return
        kept = Counter[str]()
        for piece in self._tail:
            kept[piece.step] += len(piece.data)
        dropped = [(name, DROPPED, b"%d" % count) for name, count in (self._spooled - kept).items()]
        self._spool.replace([*dropped, *((p.step, p.stream, bytes(p.data)) for p in self._tail)])

    def _forget_tail(self, count: int) -> None:
        self._tail_bytes -= count
        while count > 0 and self._tail:
            first = self._tail[0]
            part = min(count, len(first.data))
            del first.data[:part]
            self._in_tail -= part
            count -= part
            if not first.data:
                self._tail.popleft()

    def _trim_tail(self) -> None:
        while self._in_tail > self._tail_bytes:
            first = self._tail[0]
            drop = min(len(first.data), self._in_tail - self._tail_bytes)
            del first.data[:drop]
            self._in_tail -= drop
            self._truncated += drop
            if not first.data:
                self._tail.popleft()

    @property
    def pending_bytes(self) -> int:
        """Output that waits to be stored."""
        return self._pending_bytes

    def take(self, max_bytes: int) -> list[Chunk]:
        """Hand over pending chunks with their numbers, until they are max_bytes or more; `stored` must follow."""
        attempt_id, trial_id, fence = self._ids
        chunks = []
        with self._changed:
            taken = 0
            while self._pending and taken < max_bytes:
                piece = self._pending.popleft()
                data = bytes(piece.data)
                chunks.append(
                    Chunk(attempt_id, trial_id, fence, self._seq, piece.step, piece.stream, piece.at, data)
                )
                self._seq += 1
                taken += len(data)
            self._pending_bytes -= taken
            self._taken_bytes += taken
            self._storing = bool(chunks)
        return chunks

    def stored(self) -> None:
        """Note that the chunks taken last are stored."""
        with self._changed:
            self._storing = False
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let nobody wait for this pump any longer; its attempt is no longer ours."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
            if self._spool is not None:
                self._spool.close()

    def drain(self) -> None:
        """Wait until all that was written is stored, or the pump is abandoned."""
        with self._changed:
            if not (self._pending or self._storing):
                return  # no need to wake the writer, which would look at every pump of the worker
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or not (self._pending or self._storing))

    def store_tail(self) -> None:
        """Store the tail as well and wait for it: from here on the store holds all that is kept.

        Later output follows it; what is then beyond the cap counts as dropped, as before.
        """
        with self._changed:
            self._pending.extend(self._tail)
            self._pending_bytes += self._in_tail
            self._tail_bytes -= self._in_tail
            self._tail.clear()
            self._in_tail = 0
        self.drain()

    def close(self) -> LogSummary:
        """Store everything and sum up."""
        self.store_tail()
        return LogSummary(self._seq, self._taken_bytes, self._truncated)


def _append(pieces: deque[_Piece], step: str, stream: str, data: bytes) -> int:
    """Add data to the last piece where it fits, else in new ones; gives the number of bytes."""
    last = pieces[-1] if pieces else None
    if last and last.step == step and last.stream == stream and len(last.data) + len(data) <= _CHUNK_BYTES:
        last.data += data
        return len(data)
    now = datetime.now(UTC)
    for start in range(0, len(data), _CHUNK_BYTES):
        pieces.append(_Piece(step, stream, now, bytearray(data[start : start + _CHUNK_BYTES])))
    return len(data)


class LogWriter:
    """Stores and publishes the chunks of all attempts of this worker, on its own thread.

    A statement holds the chunks of many attempts. Whoever has little to say is heard in each; the loud ones share what
    is left of it, in turn.
    """

    def __init__(self, engine: Engine, publish: Callable[[Sequence[Chunk]], None], *, node_id: UUID) -> None:
        """publish: tells live readers; must neither raise nor wait, and may lose messages. node_id: of this worker."""
        self._engine = engine
        self._publish = publish
        self._node_id = node_id
        self._pumps: dict[UUID, LogPump] = {}
        self._served: dict[UUID, int] = {}
        self._rounds = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; pumps still open are not stored any further."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)

    def open(
        self, attempt_id: UUID, trial_id: UUID, fence: int, *, cap_bytes: int, spool: Spool | None = None
    ) -> LogPump:
        """Give the pump of one attempt; the caller drops it with `forget`."""
        pump = LogPump(attempt_id, trial_id, fence, cap_bytes=cap_bytes, wake=self._wake.set, spool=spool)
        with self._lock:
            self._pumps[attempt_id] = pump
        return pump

    def forget(self, attempt_id: UUID) -> None:
        """Drop a pump, closed or not."""
        with self._lock:
            pump = self._pumps.pop(attempt_id, None)
            self._served.pop(attempt_id, None)
        if pump is not None:
            pump.abandon()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                while stored_bytes := self._store_once():
                    if stored_bytes < _BATCH_BYTES // 2:
                        time.sleep(_LINGER_SECONDS)
            except Exception:
                # Without this thread every attempt of the worker would wait for its output to be stored, for ever.
                log.exception("log_writer_failed")

    def _store_once(self) -> int:
        """Store what fits into one statement; gives the number of bytes."""
        taken = self._take()
        chunks = [chunk for _, part in taken for chunk in part]
        if not chunks:
            return 0
        try:
            if self._store(chunks):
                failpoint("worker.mid_log")
                self._publish(chunks)
        finally:
            for pump, _ in taken:
                pump.stored()
        return sum(len(chunk.data) for chunk in chunks)

    def _take(self) -> list[tuple[LogPump, list[Chunk]]]:
        self._rounds += 1
        with self._lock:
            waiting = [(key, pump) for key, pump in self._pumps.items() if pump.pending_bytes]
            share = _BATCH_BYTES // max(1, len(waiting))
            # All the quiet ones fit, and among the loud ones the turn goes round.
            waiting.sort(key=lambda item: (item[1].pending_bytes > share, self._served.get(item[0], 0)))
            taken: list[tuple[LogPump, list[Chunk]]] = []
            left = _BATCH_BYTES
            for number, (key, pump) in enumerate(waiting):
                if left <= 0:
                    break
                part = pump.take(left // (len(waiting) - number))
                if part:
                    taken.append((pump, part))
                    left -= sum(len(chunk.data) for chunk in part)
                    self._served[key] = self._rounds
        return taken

    def _store(self, chunks: Sequence[Chunk]) -> bool:
        """Try until it works: the commands wait meanwhile, and the lease decides how long that makes sense."""
        pause = 0.1
        while not self._stopping:
            try:
                with self._engine.begin() as connection:
                    LogChunkRepository(connection).append(chunks, node_id=self._node_id)
            except SQLAlchemyError as error:
                log.warning("log_chunks_not_stored", count=len(chunks), error=str(error).splitlines()[0])
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
            else:
                return True
        return False
