import asyncio

from api.log_stream import while_allowed


def test_a_backlog_keeps_nobody_else_waiting():
    """What is at hand at once gives no occasion to others by itself."""

    async def backlog():
        for number in range(100):
            yield number

    async def scenario():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        async for _ in while_allowed(backlog(), lambda: asyncio.sleep(0)):
            pass
        task.cancel()
        return turns

    assert asyncio.run(scenario()) >= 99
