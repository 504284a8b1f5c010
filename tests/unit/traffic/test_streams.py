import asyncio
import contextlib
import socket
import time

from traffic.streams import BUFFER_BYTES, Stream, open_stream

RESET = b"\1\0\0\0\0\0\0\0"


async def connected() -> tuple[Stream, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), 5)
        peer = listener.accept()[0]
    return await open_stream(ours), peer


def test_what_was_said_before_a_reset_is_still_read():
    """A program that refuses a body closes with most of it unread, which resets the connection."""

    async def run():
        stream, peer = await connected()
        with peer:
            peer.sendall(b"too large")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        time.sleep(0.05)  # noqa: ASYNC251 -- the loop must find the reset when it writes, not when it reads
        with contextlib.suppress(ConnectionResetError):
            for _ in range(3):
                await stream.write(b"x")
                await asyncio.sleep(0)
        said = await stream.read()
        return said, await stream.read(), stream.is_broken

    assert asyncio.run(run()) == (b"too large", b"", True)


def test_no_more_is_read_than_fits_until_somebody_takes_it():
    async def run():
        stream, peer = await connected()
        with peer:
            peer.setblocking(False)
            sent, idle = 0, 0
            while idle < 20:
                try:
                    sent += peer.send(bytes(1 << 20))
                    idle = 0
                except BlockingIOError:
                    idle += 1
                await asyncio.sleep(0.002)
            held = len(stream.take())
            got = held
            peer.shutdown(socket.SHUT_WR)
            while data := await stream.read():
                got += len(data)
            stream.close()
            await asyncio.sleep(0)
        return held, got == sent

    held, is_all = asyncio.run(run())
    assert BUFFER_BYTES <= held < 2 * BUFFER_BYTES
    assert is_all


def test_an_end_of_one_direction_leaves_the_other():
    async def run():
        stream, peer = await connected()
        with peer:
            ends = []
            stream.on_eof = lambda: ends.append("eof")
            peer.shutdown(socket.SHUT_WR)
            assert await stream.read() == b""
            assert (ends, stream.is_lost, stream.is_broken) == (["eof"], False, False)
            await stream.write(b"answer")
            stream.write_eof()
            answer = await asyncio.to_thread(peer.recv, 10)
            stream.close()
            await asyncio.sleep(0)
            return answer

    assert asyncio.run(run()) == b"answer"


def test_small_messages_go_out_at_once_also_where_asyncio_leaves_it_to_the_socket():
    """A listener made without IPPROTO_TCP by name gives sockets on which asyncio does not set TCP_NODELAY.

    Then the end of an answer waits until the client's kernel acknowledges its beginning, which takes 40 ms.
    """

    async def run():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            ours = socket.create_connection(listener.getsockname(), 5)
            accepted = listener.accept()[0]
        streams = [await open_stream(connection) for connection in (ours, accepted)]
        sockets = [stream.info("socket") for stream in streams]
        set_options = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets]
        protocols = [each.proto for each in sockets]
        for stream in streams:
            stream.abort()
        await asyncio.sleep(0)
        return protocols[1], set_options

    assert asyncio.run(run()) == (0, [1, 1])
