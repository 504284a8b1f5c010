import asyncio
from datetime import UTC, datetime

from repositories.log_reading import LogChunkRow
from services.log_hub import LogListener


def chunk(seq: int) -> LogChunkRow:
    return LogChunkRow(seq, datetime.now(UTC), "stdout", "run", b"x")


def test_a_listener_gives_chunks_in_order_and_none_when_it_is_quiet():
    async def scenario():
        listener = LogListener()
        for seq in range(3):
            listener.offer(chunk(seq))
        return [await listener.next(0.01) for _ in range(4)]

    found = asyncio.run(scenario())
    assert [item and item.seq for item in found] == [0, 1, 2, None]


def test_a_slow_reader_is_sent_to_the_store_instead_of_filling_the_memory():
    async def scenario():
        listener = LogListener()
        for seq in range(1000):
            listener.offer(chunk(seq))
        first = await listener.next(0.01)
        listener.offer(chunk(1000))
        return first, await listener.next(0.01)

    first, second = asyncio.run(scenario())
    assert first is None
    assert second.seq == 1000


def test_a_reader_that_never_reads_again_keeps_no_chunk():
    async def scenario():
        listener = LogListener()
        for seq in range(1000):
            listener.offer(chunk(seq))
        return listener._chunks.qsize(), await listener.next(0.01)

    assert asyncio.run(scenario()) == (1, None)


def test_a_reader_that_waits_hears_at_once_of_more_than_it_can_keep():
    async def scenario():
        listener = LogListener()
        waiting = asyncio.create_task(listener.next(60))
        await asyncio.sleep(0)
        for seq in range(1000):
            listener.offer(chunk(seq))
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(scenario()) is None
