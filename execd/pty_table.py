"""All terminal sessions: making them, finding them, and forgetting those that are over."""

import asyncio
import logging
import time
from typing import Final

from execd.errors import OverloadedError
from execd.execution import new_execution_id
from execd.pty_client import PtyClient
from execd.pty_session import Machinery, PtySession
from execd.requests import CommandRequest

__all__ = ["PtyTable"]

log = logging.getLogger("execd.pty")

_MAX_SESSIONS: Final = 64
"""Each may keep 1 MiB of output."""

_KEPT_SECONDS: Final = 600.0
"""For a client that lost its connection shortly before the end, to fetch the rest."""

_UNUSED_SECONDS: Final = 60.0
"""A session that no one ever connected to gives way to a new one after this time, if the table is full."""


class PtyTable:
    """Sessions by id."""

    def __init__(self, machinery: Machinery) -> None:
        self._machinery = machinery
        self._sessions: dict[str, PtySession] = {}

    def create(self, request: CommandRequest) -> PtySession:
        """Make a session; its program is not started. Raises OverloadedError."""
        self.sweep()
        if len(self._sessions) >= _MAX_SESSIONS and not self._make_room():
            raise OverloadedError(f"{_MAX_SESSIONS} terminal sessions are open already: delete one")
        session = PtySession(new_execution_id(), request, self._machinery)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str) -> PtySession | None:
        """Give a session, if there is one of this id."""
        return self._sessions.get(session_id)

    def sweep_later(self) -> None:
        """Forget, when its time has come, a session that is over now."""
        asyncio.get_running_loop().call_later(_KEPT_SECONDS + 1, self.sweep)

    def sweep(self) -> None:
        """Forget sessions that are over and that no one asked for lately; what they left running lives on."""
        now = time.monotonic()
        for session in self._idle():
            if session.is_over and now - session.changed_at >= _KEPT_SECONDS:
                self._forget(session)

    async def delete(self, session: PtySession) -> None:
        """End a session: its client is told, its program and all that descends from it killed."""
        del self._sessions[session.id]
        if isinstance(session.client, PtyClient):
            session.client.tell_gone()
        await session.kill()
        log.info("terminal_deleted id=%s", session.id)

    def close(self) -> None:
        """Let go of all descriptors; the programs are killed by others."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _make_room(self) -> bool:
        """Forget the session that is the least loss; False if none may go."""
        unused_since = time.monotonic() - _UNUSED_SECONDS
        over = [session for session in self._idle() if session.is_over]
        unused = [each for each in self._idle() if each.mode is None and each.changed_at < unused_since]
        for session in [*sorted(over, key=_age), *sorted(unused, key=_age)][:1]:
            self._forget(session)
            return True
        return False

    def _idle(self) -> list[PtySession]:
        return [session for session in self._sessions.values() if session.client is None]

    def _forget(self, session: PtySession) -> None:
        del self._sessions[session.id]
        session.close()


def _age(session: PtySession) -> float:
    return session.changed_at
