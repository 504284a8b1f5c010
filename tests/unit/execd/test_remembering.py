"""What is remembered of commands and sessions, and for how long."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from execd import sessions
from execd.accounts import Accounts
from execd.commands import MAX_ENDED, ExecutionTable
from execd.envs import CommandEnvironment
from execd.errors import CommandMissingError, ContextMissingError, ExecdError, IdempotencyKeyReusedError
from execd.families import Families
from execd.idempotency import IdempotencyKeys
from execd.reaper import Reaper
from execd.requests import CommandRequest
from execd.sessions import SessionTable

MISSING = CommandRequest(argv=("/no/such/program",))


def with_table(work: Callable[[ExecutionTable], Awaitable[None]]) -> None:
    async def session() -> None:
        environment = CommandEnvironment({}, reads_file=False)
        await work(
            ExecutionTable(
                environment, Accounts(), Reaper(), Families(), max_running=8, oom_kills=lambda: None
            )
        )

    asyncio.run(session())


def test_the_oldest_command_is_forgotten_and_its_key_with_it() -> None:
    async def work(table: ExecutionTable) -> None:
        keys = IdempotencyKeys()
        table.on_forget(keys.forget)
        first = keys.get_or_start("key", {"argv": 1}, lambda: table.start(MISSING))
        second = table.start(MISSING)
        for _ in range(MAX_ENDED - 2):
            table.start(MISSING)
        assert table.find(first.id) is first
        with pytest.raises(IdempotencyKeyReusedError):
            keys.get_or_start("key", {"argv": 2}, lambda: table.start(MISSING))
        table.start(MISSING)
        with pytest.raises(CommandMissingError):
            table.find(first.id)
        assert table.find(second.id) is second
        assert keys.get_or_start("key", {"argv": 2}, lambda: second) is second
        assert len(table.all()) == MAX_ENDED

    with_table(work)


def test_a_session_ends_with_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(table: ExecutionTable) -> None:
        shells = SessionTable(table, lambda _: "/")
        old = shells.create(None)
        monkeypatch.setattr(sessions, "LIFE_SECONDS", -1.0)
        with pytest.raises(ExecdError, match="no session"):
            shells.run(old, CommandRequest(command="true"))
        with pytest.raises(ContextMissingError):
            await shells.delete(old)

    with_table(work)
