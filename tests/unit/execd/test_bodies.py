from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.bodies import BodyFraming
from execd.errors import InvalidBodyError
from execd.multipart import MultipartParser, PartData


def content_of(framing: BodyFraming, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """The content, and what came after its end in the piece that held it."""
    content = b""
    for piece in pieces:
        # As with a receive buffer: what lies beyond the size is left from earlier.
        data = bytearray(piece + b"left over")
        for start, end in framing.ranges(data, len(piece)):
            content += data[start:end]
        if framing.is_complete:
            return content, piece[framing.end :]
    raise AssertionError("it has no end")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Pieces of data."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(0, 10**6)))
def test_chunks_are_found_however_they_come(chunks: list[bytes], places: list[int]) -> None:
    encoded = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    body = encoded + b"000\r\nTrailer: x\r\n\r\n"
    content, _ = content_of(BodyFraming(None), cut(body, places))
    assert content == b"".join(chunks)


def test_what_follows_the_end_is_told_apart() -> None:
    assert content_of(BodyFraming(5), [b"12", b"345GET /"]) == (b"12345", b"GET /")
    assert content_of(BodyFraming(None), [b"1\r\nx\r", b"\n0\r\n\r\nGET /"]) == (b"x", b"GET /")
    assert BodyFraming(0).is_complete


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n", b"x\r\n", b"-1\r\n", b"0x1\r\n", b"1\n", b" 1\r\n", b"1 1\r\n", b"1\r\nxy\r\n", b"1\r\nx\n",
        b"f" * 16 + b"\r\n", b"1;" + b"a" * 5000, b"0\r\n\n", b"0\r\n" + b"a: b\r\n" * 5000,
    ],
)  # fmt: skip
def test_broken_chunks_are_refused(body: bytes) -> None:
    framing = BodyFraming(None)
    with pytest.raises(InvalidBodyError, match="broken"):
        list(framing.ranges(body, len(body)))


@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\r\n", b"\r\n-", b"\r\n--bound", b"x" * 50])),
    st.lists(st.integers(0, 10**6)),
)
def test_parts_are_found_whatever_range_of_a_buffer_they_come_in(
    parts: list[bytes], places: list[int]
) -> None:
    content = b"".join(parts)
    head = b'--boundary\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
    body = head + content + b"\r\n--boundary--\r\n"
    parser = MultipartParser(b"boundary")
    found = b""
    for piece in cut(body, places):
        buffer = bytearray(b"before" + piece + b"\r\n--boundary")
        for event in parser.feed(buffer, 6, 6 + len(piece)):
            if isinstance(event, PartData):
                found += event.data
    parser.close()
    assert found == content
