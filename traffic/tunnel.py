"""Bytes both ways, whatever they mean."""

import asyncio
import contextlib

from traffic.streams import Stream

__all__ = ["tunnel"]


async def tunnel(one: Stream, other: Stream) -> None:
    """Carry both directions to their ends, each of which is passed on; one that breaks breaks the other."""
    loop = asyncio.get_running_loop()
    pumps = [loop.create_task(_pump(one, other)), loop.create_task(_pump(other, one))]
    try:
        await asyncio.wait(pumps)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)


async def _pump(source: Stream, sink: Stream) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read():
            await sink.write(data)
        if not source.is_broken:
            sink.write_eof()
            return
    # What was sent before still arrives: the peer would otherwise miss, say, the reason of a close.
    source.abort()
    sink.close()
