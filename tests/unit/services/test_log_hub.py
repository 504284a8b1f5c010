import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID

from repositories.log_reading import LogChunkRow
from services.log_hub import CHANNEL, LogHub, LogListener


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


class Subscription:
    """A connected subscription that says only what it is told to."""

    def __init__(self):
        self.connection = SimpleNamespace(is_connected=True)
        self.messages = asyncio.Queue()

    async def subscribe(self, channel):
        await self.messages.put({"type": "subscribe", "channel": channel.encode(), "data": 1})

    async def unsubscribe(self, channel):
        pass

    async def get_message(self, timeout):  # noqa: ASYNC109 -- of the library's method
        return await asyncio.wait_for(self.messages.get(), timeout)


def test_a_reader_is_sent_to_the_store_again_only_by_an_answer_that_comes_after_it_has_begun():
    async def scenario():
        hub = LogHub("redis://127.0.0.1:1")
        hub._pubsub = subscription = Subscription()
        receiving = asyncio.create_task(hub._receive(subscription))
        reader = UUID(int=1)
        async with hub.listen(reader) as listener:
            at_first = listener._chunks.qsize()
            await subscription.subscribe(CHANNEL.format(attempt_id=reader))
            later = await asyncio.wait_for(listener._chunks.get(), 5)
        receiving.cancel()
        await hub.aclose()
        return at_first, later

    assert asyncio.run(scenario()) == (0, None)
