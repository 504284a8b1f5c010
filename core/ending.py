"""Ending a task for sure."""

import asyncio
from typing import Any, Final

__all__ = ["end_task"]

_AGAIN_SECONDS: Final = 0.2


async def end_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end. What it raises is its own matter.

    Again and again: redis-py swallows a cancel that comes as a call of it is just done, and the task goes on.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it
