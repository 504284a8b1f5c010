"""A TCP proxy that can play a broken network: connections cut, data held back in one direction or both."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TcpProxy", "tcp_proxy"]

_READ_BYTES = 65536


class TcpProxy:
    """One listening port that leads to one target. Its methods may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, target_port: int) -> None:
        self._loop = loop
        self._target = (host, target_port)
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._to_server.set()
        self._to_client.set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._target[0], 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Take no more connections; called by the loop's own thread."""
        assert self._server is not None
        self._server.close()

    def hold(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Let nothing through, as a network does that drops packets: nobody is told."""
        self._loop.call_soon_threadsafe(self._hold, to_server, to_client)

    def cut(self) -> None:
        """Close all connections, and every new one at once."""
        self._loop.call_soon_threadsafe(self._cut)

    def heal(self) -> None:
        """Let everything through again, what was held back first."""
        self._loop.call_soon_threadsafe(self._heal)

    def _hold(self, to_server: bool, to_client: bool) -> None:
        if to_server:
            self._to_server.clear()
        if to_client:
            self._to_client.clear()

    def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def _heal(self) -> None:
        self._is_cut = False
        self._to_server.set()
        self._to_client.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            await self._to_server.wait()
            far_reader, far = await asyncio.open_connection(*self._target)
            self._writers.add(far)
            pumps = [
                asyncio.ensure_future(self._pump(reader, far, self._to_server)),
                asyncio.ensure_future(self._pump(far_reader, writer, self._to_client)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # The target is away, or the proxy is: the client sees its connection end.
            pass
        finally:
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                await gate.wait()
                writer.write(data)
                await writer.drain()


@contextmanager
def tcp_proxy(*targets: int, host: str = "127.0.0.1") -> Iterator[list[TcpProxy]]:
    """Give a proxy for each target port of this host, all of them served by one thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tcp-proxy", daemon=True)
    thread.start()
    proxies: list[TcpProxy] = []
    try:
        made = (asyncio.run_coroutine_threadsafe(_make(loop, host, target), loop) for target in targets)
        proxies += [proxy.result(10) for proxy in made]
        yield proxies
    finally:
        asyncio.run_coroutine_threadsafe(_stop(proxies), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _make(loop: asyncio.AbstractEventLoop, host: str, target: int) -> TcpProxy:
    proxy = TcpProxy(loop, host, target)
    await proxy.start()
    return proxy


async def _stop(proxies: list[TcpProxy]) -> None:
    for proxy in proxies:
        proxy.close()
    while others := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)
