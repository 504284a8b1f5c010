import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.streams import fed_stream
from traffic.bodies import CHUNKED, UNTIL_CLOSE, BodyReader, BodyWriter, request_framing, response_framing
from traffic.errors import MessageError
from traffic.heads import RequestHead, ResponseHead


def request(*headers: tuple[bytes, bytes], version: int = 11) -> RequestHead:
    return RequestHead(b"POST", b"/", version, list(headers))


def response(status: int, *headers: tuple[bytes, bytes], version: int = 11) -> ResponseHead:
    return ResponseHead(status, b"", version, list(headers))


async def read_all(stream, framing):
    body = BodyReader(stream, framing)
    parts = []
    while part := await body.read():
        parts.append(part)
    assert body.is_complete
    return b"".join(parts), body.trailers, stream.take()


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=10),
    st.lists(st.tuples(st.sampled_from([b"A", b"b-c"]), st.sampled_from([b"", b"x y"])), max_size=3),
    st.lists(st.integers(1, 30), max_size=40),
)
def test_what_is_framed_in_chunks_is_read_again(pieces, trailers, cuts):
    writer = BodyWriter(is_chunked=True)
    data = b"".join([writer.frame(piece) for piece in pieces]) + writer.end(trailers)
    content, found, rest = asyncio.run(read_all(fed_stream(data + b"next", cuts=cuts), CHUNKED))
    assert (content, found) == (b"".join(pieces), trailers)
    assert b"next".startswith(rest)


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_a_length_is_kept_to_the_byte(content, cuts):
    stream = fed_stream(content + b"next", cuts=cuts)
    found, _, rest = asyncio.run(read_all(stream, len(content)))
    assert found == content
    assert b"next".startswith(rest)


@pytest.mark.parametrize("framing", [CHUNKED, 9])
def test_an_end_that_comes_too_early_is_told(framing):
    with pytest.raises(MessageError, match="breaks off"):
        asyncio.run(read_all(fed_stream(b"4\r\nhalf\r\n"[:8]), framing))


def test_an_orderly_close_ends_a_body_without_length_and_a_break_does_not():
    assert asyncio.run(read_all(fed_stream(b"all"), UNTIL_CLOSE))[0] == b"all"
    stream = fed_stream(b"all")
    stream.is_broken = True
    with pytest.raises(MessageError, match="breaks off"):
        asyncio.run(read_all(stream, UNTIL_CLOSE))


@pytest.mark.parametrize(
    ("head", "framing"),
    [
        (request(), 0),
        (request((b"content-LENGTH", b"007")), 7),
        (request((b"Transfer-Encoding", b"Chunked")), CHUNKED),
    ],
)
def test_a_request_says_how_its_body_is_framed(head, framing):
    assert request_framing(head) == framing


def test_chunks_are_unknown_to_old_senders():
    with pytest.raises(MessageError, match=r"HTTP/1\.0"):
        request_framing(request((b"Transfer-Encoding", b"chunked"), version=10))


@pytest.mark.parametrize(
    ("method", "head", "framing"),
    [
        (b"GET", response(200), UNTIL_CLOSE),
        (b"GET", response(200, (b"Content-Length", b"3")), 3),
        (b"HEAD", response(200, (b"Content-Length", b"3")), 0),
        (b"HEAD", response(200, (b"Transfer-Encoding", b"chunked")), 0),
        (b"GET", response(204), 0),
        (b"GET", response(304, (b"Content-Length", b"3")), 0),
        (b"GET", response(103), 0),
    ],
)
def test_a_response_says_how_its_body_is_framed(method, head, framing):
    assert response_framing(head, method=method) == framing


def test_nothing_is_framed_as_nothing():
    """An empty chunk would be the end."""
    assert BodyWriter(is_chunked=True).frame(b"") == b""
    assert BodyWriter(is_chunked=False).end([(b"a", b"b")]) == b""
