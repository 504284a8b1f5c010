"""Streams without sockets."""

from collections.abc import Sequence

from traffic.streams import Stream


class FedStream(Stream):
    """Gives what it was fed, piece by piece as its reader asks."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = list(pieces)

    async def wait(self) -> bool:
        if not self.has_data and self._pieces:
            self._take_in(self._pieces.pop(0))
        self.is_eof = not self._pieces
        return self.has_data


def fed_stream(data: bytes, *, cuts: Sequence[int] = ()) -> Stream:
    """A stream of these bytes; cuts: lengths of the first pieces."""
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    return FedStream([piece for piece in [*pieces, data] if piece])


__all__ = ["FedStream", "fed_stream"]
