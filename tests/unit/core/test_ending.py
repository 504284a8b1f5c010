import asyncio

from core.ending import end_task


def test_a_task_that_swallows_a_cancel_ends_all_the_same():
    cancels = []

    async def stubborn():
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancels.append(1)

    async def run():
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await end_task(task)
        return task.done()

    assert asyncio.run(run())
    assert len(cancels) == 3


def test_the_error_of_a_task_is_not_that_of_who_ends_it():
    async def failing():
        raise ValueError

    async def run():
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        await end_task(task)

    asyncio.run(run())
