"""Calls through the server proxy end soon after their key is revoked, however long they would go on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio.to_thread
from sqlalchemy.exc import SQLAlchemyError

from core.ending import end_task
from core.errors import UnauthenticatedError
from core.logging import get_logger
from services.tenants import Authenticator

__all__ = ["while_key_is_good"]

log = get_logger(__name__)

CHECK_SECONDS = 5.0
"""How long a call may go on under a key that was revoked, on top of the key cache's five seconds."""


@contextlib.asynccontextmanager
async def while_key_is_good(authenticator: Authenticator, key: str | None) -> AsyncIterator[None]:
    """Cut off what runs within once the key is revoked. key: None for a caller that needed none.

    Raises UnauthenticatedError then.
    """
    watch = _KeyWatch(authenticator, key)
    try:
        async with watch.cut:
            watch.begin()
            yield
    except TimeoutError:
        if watch.refusal is None:
            raise
        raise watch.refusal from None
    finally:
        await watch.end()


class _KeyWatch:
    """Costs a call that is short a timer, and no task. cut: expires when the key is found revoked."""

    def __init__(self, authenticator: Authenticator, key: str | None) -> None:
        self.cut = asyncio.timeout(None)
        self.refusal: UnauthenticatedError | None = None
        self._authenticator = authenticator
        self._key = key
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._key is not None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._start, self._key)

    async def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await end_task(self._task)

    def _start(self, key: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(key))

    async def _run(self, key: str) -> None:
        while True:
            try:
                if self._authenticator.known(key) is None:
                    # A call that ends meanwhile does not wait for the database.
                    await anyio.to_thread.run_sync(self._authenticator.recheck, key, abandon_on_cancel=True)
            except UnauthenticatedError as error:
                self.refusal = error
                self.cut.reschedule(asyncio.get_running_loop().time())
                return
            except SQLAlchemyError as error:
                # A database that is away takes nobody's rights: the next check will tell.
                log.warning("proxied_call_not_checked", error=type(error).__name__)
            await asyncio.sleep(CHECK_SECONDS)
