import asyncio

import pytest

from traffic.backends import Backend, BackendPool
from traffic.streams import Stream


class Line(Stream):
    """A stream without a socket. closed: by its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    def abort(self) -> None:
        self.closed.set()

    close = abort


def run(play):
    async def main():
        pool = BackendPool(idle_seconds=0.05)
        made: list[Line] = []

        async def connect() -> Line:
            made.append(Line())
            return made[-1]

        try:
            await play(pool, connect, made)
        finally:
            pool.close()

    asyncio.run(main())


def test_a_connection_is_used_again_by_those_with_the_same_key_only():
    async def play(pool, connect, made):
        first = await pool.get("a", connect)
        assert not first.is_reused
        pool.give_back(first)
        other = await pool.get("b", connect)
        again = await pool.get("a", connect)
        assert (again.stream, again.is_reused) == (first.stream, True)
        assert other.stream is not first.stream
        assert len(pool) == 0

    run(play)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["data", "eof"])
def test_one_that_says_something_unasked_is_not_used_again(when, what):
    async def play(pool, connect, made):
        backend = await pool.get("a", connect)

        def speak() -> None:
            if what == "data":
                backend.stream._take_in(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                backend.stream.eof_received()

        if when == "before":
            speak()
        pool.give_back(backend)
        assert len(pool) == (when == "after")
        if when == "after":
            speak()
        assert (await pool.get("a", connect)).stream is not backend.stream
        assert backend.stream.is_closed
        assert len(made) == 2

    run(play)


def test_one_that_waits_too_long_is_closed():
    async def play(pool, connect, made):
        pool.give_back(await pool.get("a", connect))
        async with asyncio.timeout(5):
            await made[0].closed.wait()
        assert len(pool) == 0

    run(play)


def test_so_many_wait_for_one_key_and_in_all():
    async def play(pool, connect, made):
        for _ in range(10):
            pool.give_back(Backend("a", Line()))
        assert len(pool) == 8
        for number in range(600):
            pool.give_back(Backend(number, Line()))
        assert len(pool) == 512

    run(play)


def test_a_new_one_may_be_asked_for():
    async def play(pool, connect, made):
        pool.give_back(await pool.get("a", connect))
        assert not (await pool.get("a", connect, is_new=True)).is_reused
        assert len(pool) == 1

    run(play)
