"""Where live sandboxes are, asked for every request of their traffic and remembered for moments."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from core.ending import end_task
from core.errors import NotFoundError, UnavailableError
from core.logging import get_logger
from models.live_sandboxes import ENDED_STATES, WireState
from repositories.sandbox_targets import SandboxTargetRepository
from services.wake import TRAFFIC_CHANNEL, read_start, subscriber

__all__ = ["DatabaseDirectory", "SandboxDirectory", "SandboxEndedError", "SandboxTarget"]

log = get_logger(__name__)

_KEEP_SECONDS: Final = 5.0
"""How long a sandbox that ended may still be believed running, if its bell is lost: nothing answers there then."""

_KEEP_ENTRIES: Final = 8192
_LOOKUP_SECONDS: Final = 10.0
_THREADS: Final = 4
_RETRY_SECONDS: Final = 1.0
_LOST: Final = (RedisError, OSError, AttributeError)
"""What a call on a broken connection raises; the last one if another task has closed it meanwhile."""


@dataclass(frozen=True, slots=True)
class SandboxTarget:
    """A live sandbox. node_id, runtime, sandbox_name: None until it is placed. ingress_url: of its node.

    access_token: whoever has it may use execd of the sandbox. is_secure: its other ports demand it, too.
    """

    id: UUID
    tenant_id: int
    state: WireState
    access_token: str
    is_secure: bool = False
    node_id: UUID | None = None
    runtime: str | None = None
    sandbox_name: str | None = None
    ingress_url: str | None = None


class SandboxEndedError(NotFoundError):
    """One that has ended and has a record. message: that there is none, for whoever it does not belong to."""

    def __init__(
        self,
        sandbox_id: UUID,
        *,
        tenant_id: int,
        access_token: str,
        state: str,
        reason: str | None,
        cause: str | None,
    ) -> None:
        """state, reason, cause: as its record has them. tenant_id, access_token: who may know of it."""
        super().__init__("sandbox", sandbox_id)
        self.tenant_id = tenant_id
        self.access_token = access_token
        why = ": ".join(part for part in (reason, cause) if part)
        self.told = f"sandbox {sandbox_id} has ended, it is {state}" + (f" ({why})" if why else "")


class SandboxDirectory(Protocol):
    """Says where live sandboxes are."""

    async def resolve(self, sandbox_id: UUID) -> SandboxTarget:
        """Find one that has not ended. Raises SandboxEndedError, NotFoundError, UnavailableError."""

    def forget(self, sandbox_id: UUID) -> None:
        """Ask anew the next time: what was told has turned out wrong."""


class DatabaseDirectory:
    """Asks the database, in threads of its own. Remembers running sandboxes only. For one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        keep_seconds: float = _KEEP_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """engine: the caller's to dispose of. Connects to nothing yet."""
        self._engine = engine
        self._keep_seconds = keep_seconds
        self._monotonic = monotonic
        self._known: OrderedDict[UUID, tuple[float, SandboxTarget]] = OrderedDict()
        self._lookups: dict[UUID, asyncio.Task[SandboxTarget]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sandbox-directory")
        self._listening: asyncio.Task[None] | None = None

    async def resolve(self, sandbox_id: UUID) -> SandboxTarget:
        """Find one that has not ended. Raises SandboxEndedError, NotFoundError, UnavailableError."""
        until, known = self._known.get(sandbox_id, (0.0, None))
        if known is not None and self._monotonic() < until:
            return known
        lookup = self._lookups.get(sandbox_id)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._look_up(sandbox_id))
            self._lookups[sandbox_id] = lookup
            lookup.add_done_callback(lambda done: self._end_lookup(sandbox_id, done))
        # Whoever leaves does not take the answer from those who ask for the same one.
        return await asyncio.shield(lookup)

    def forget(self, sandbox_id: UUID) -> None:
        """Ask anew the next time; an answer that is under way counts no more either, but for those who wait for it."""
        self._known.pop(sandbox_id, None)
        self._lookups.pop(sandbox_id, None)

    def forget_all(self) -> None:
        """The same for all of them."""
        self._known.clear()
        self._lookups.clear()

    def listen(self, redis_url: str, *, on_start: Callable[[UUID, UUID], None] | None = None) -> None:
        """Begin to hear of changes; must be called in the event loop that resolves. Without Redis nobody is heard.

        on_start: called with the ids of a sandbox and of its node when it is heard to run there: a hint, no more.
        """
        self._listening = asyncio.get_running_loop().create_task(self._listen(redis_url, on_start or _ignore))

    async def aclose(self) -> None:
        """End all."""
        if self._listening is not None:
            await end_task(self._listening)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look_up(self, sandbox_id: UUID) -> SandboxTarget:
        loop = asyncio.get_running_loop()
        asked_at = self._monotonic()
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                target, seconds_left = await loop.run_in_executor(self._threads, self._find, sandbox_id)
        except TimeoutError as error:
            raise UnavailableError("the database does not answer: try again soon") from error
        except SQLAlchemyError as error:
            log.warning("sandbox_lookup_failed", error=str(error).splitlines()[0])
            raise UnavailableError("the database does not answer: try again soon") from error
        # Only if nobody said meanwhile that it has changed.
        if (
            self._lookups.get(sandbox_id) is asyncio.current_task()
            and target.state is WireState.RUNNING
            and self._keep_seconds > 0
        ):
            keep = self._keep_seconds if seconds_left is None else min(self._keep_seconds, seconds_left)
            self._known[sandbox_id] = (asked_at + keep, target)
            self._known.move_to_end(sandbox_id)
            if len(self._known) > _KEEP_ENTRIES:
                self._known.popitem(last=False)
        return target

    def _find(self, sandbox_id: UUID) -> tuple[SandboxTarget, float | None]:
        with self._engine.begin() as connection:
            row = SandboxTargetRepository(connection).find(sandbox_id)
        if row is None:
            raise NotFoundError("sandbox", sandbox_id)
        is_over = row.seconds_left is not None and row.seconds_left <= 0
        if row.state in ENDED_STATES or is_over:
            has_ended = row.state in ENDED_STATES
            raise SandboxEndedError(
                sandbox_id,
                tenant_id=row.tenant_id,
                access_token=row.access_token,
                # What has expired is ended within moments, and nobody gets to it any more.
                state=row.state if has_ended else WireState.TERMINATED,
                reason=row.state_reason if has_ended else "SANDBOX_EXPIRED",
                cause=row.state_message if has_ended else None,
            )
        target = SandboxTarget(
            id=sandbox_id,
            tenant_id=row.tenant_id,
            state=WireState(row.state),
            access_token=row.access_token,
            is_secure=row.is_secure,
            node_id=row.node_id,
            runtime=row.runtime,
            sandbox_name=row.sandbox_name,
            ingress_url=row.ingress_url,
        )
        return target, row.seconds_left

    def _end_lookup(self, sandbox_id: UUID, lookup: "asyncio.Task[SandboxTarget]") -> None:
        if self._lookups.get(sandbox_id) is lookup:
            del self._lookups[sandbox_id]
        if not lookup.cancelled():
            lookup.exception()  # looked at, also if everybody who asked has left

    async def _listen(self, redis_url: str, on_start: Callable[[UUID, UUID], None]) -> None:
        client = subscriber(redis_url)
        try:
            while True:
                try:
                    async with client.pubsub() as pubsub:
                        await pubsub.psubscribe(TRAFFIC_CHANNEL.format(sandbox_id="*"))
                        # Whatever was said before is missed.
                        self.forget_all()
                        while True:
                            self._hear(await pubsub.get_message(timeout=2.0), on_start)
                except _LOST as error:
                    log.warning("sandbox_directory_deaf", error=type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            await client.aclose()

    def _hear(self, message: dict[str, bytes | str] | None, on_start: Callable[[UUID, UUID], None]) -> None:
        if message is None or message["type"] != "pmessage":
            return
        channel = message["channel"]
        text = channel.decode("ascii", "replace") if isinstance(channel, bytes) else channel
        with contextlib.suppress(ValueError):
            sandbox_id = UUID(text.partition(":")[2])
            self.forget(sandbox_id)
            node_id = read_start(message["data"])
            if node_id is not None:
                on_start(sandbox_id, node_id)


def _ignore(_sandbox_id: UUID, _node_id: UUID) -> None:
    """Have nothing to get ready."""
