"""Streams of several event loops at once."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from traffic.streams import open_stream

BYTES = 24 << 20


def test_loops_that_receive_at_the_same_time_do_not_meet_in_one_buffer():
    async def carry(letter: bytes) -> set[int]:
        ours, theirs = socket.socketpair()
        sender, receiver = await open_stream(ours), await open_stream(theirs)

        async def send() -> None:
            for _ in range(BYTES // (1 << 16)):
                await sender.write(letter * (1 << 16))
            sender.close()

        sending = asyncio.create_task(send())
        seen: set[int] = set()
        while data := await receiver.read():
            seen |= set(data)
        await sending
        receiver.close()
        return seen

    letters = [b"a", b"b", b"c", b"d"]
    with ThreadPoolExecutor(len(letters)) as pool:
        seen = list(pool.map(lambda letter: asyncio.run(carry(letter)), letters))
    assert seen == [{letter[0]} for letter in letters]
