import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.streams import fed_stream
from traffic.errors import BackendError, MessageError
from traffic.heads import MAX_HEAD_BYTES, format_head, has_token, read_request, read_response


def read(data: bytes, *, cuts: list[int] | None = None):
    async def run():
        stream = fed_stream(data, cuts=cuts or [])
        head = await read_request(stream)
        return head, stream.take()

    return asyncio.run(run())


@given(st.lists(st.integers(1, 20), max_size=30))
def test_a_head_is_read_however_it_comes_and_what_follows_is_left(cuts):
    data = b"\r\nPOST /a?b HTTP/1.1\r\nHost: h\r\nX-y:\t z \t\r\nempty:\r\n\r\nbody"
    head, rest = read(data, cuts=cuts)
    assert (head.method, head.target, head.version) == (b"POST", b"/a?b", 11)
    assert head.headers == [(b"Host", b"h"), (b"X-y", b"z"), (b"empty", b"")]
    assert b"body".startswith(rest)


def test_the_end_before_a_head_is_no_error():
    assert read(b"") == (None, b"")
    assert read(b"\r\n") == (None, b"")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n", "breaks off"),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", "request line"),
        (b"GET / HTTP/1.1\nHost: h\n\n", "other than CR and LF"),
        (b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", "broken"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES, "larger than 64 KiB"),
    ],
)
def test_what_is_no_head_is_told(data, words):
    with pytest.raises(MessageError, match=words):
        read(data)


@pytest.mark.parametrize("line", [b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 200 OK then"])
def test_a_status_line_may_lack_its_reason(line):
    async def run():
        return await read_response(fed_stream(line + b"\r\n\r\n"))

    assert asyncio.run(run()).status == 200


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 20", b"HTTP/2 200", b"HTTP/1.1  200", b"ICY 200 OK", b"HTTP/1.1 099 x"]
)
def test_an_answer_that_is_no_http_is_told(line):
    async def run():
        return await read_response(fed_stream(line + b"\r\n\r\n"))

    with pytest.raises(BackendError, match="no HTTP"):
        asyncio.run(run())


@pytest.mark.parametrize("value", [b"a\r\nB: c", b"a\nB: c", b"a\rb", b"a\0"])
def test_no_head_is_written_that_would_be_read_as_more(value):
    with pytest.raises(ValueError, match="line end"):
        format_head(b"GET / HTTP/1.1", [(b"A", value)])
    with pytest.raises(ValueError, match="line end"):
        format_head(b"GET /" + value + b" HTTP/1.1", [])


def test_tokens_are_found_in_lists_whatever_their_case():
    headers = [(b"Connection", b"a, Keep-Alive;x=1"), (b"CONNECTION", b"UPGRADE")]
    assert has_token(headers, b"connection", b"keep-alive")
    assert has_token(headers, b"connection", b"upgrade")
    assert not has_token(headers, b"connection", b"keep")
