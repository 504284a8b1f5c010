import httpx
import pytest

from sandmill import ConnectionLostError, NotFoundError, ProtocolError, RetryPolicy, UnauthenticatedError
from tests.support.wire import (
    ATTEMPT_ID,
    END_EVENT,
    BrokenStream,
    Server,
    chunk_event,
    make_chunk,
    make_error,
)


def events(*parts: bytes) -> httpx.Response:
    return httpx.Response(200, content=b"".join(parts), headers={"Content-Type": "text/event-stream"})


def broken(*parts: bytes) -> httpx.Response:
    return httpx.Response(200, stream=BrokenStream(parts, lambda: httpx.ReadError("reset")))


def test_chunks_come_in_order_up_to_the_end() -> None:
    server = Server(events(b": open\n\n", chunk_event(0, b"a\xff"), chunk_event(1), END_EVENT))
    stream = server.client.iter_logs(ATTEMPT_ID)
    chunks = list(stream)
    assert [(chunk.seq, chunk.data, chunk.step) for chunk in chunks] == [
        (0, b"a\xff", "verify"),
        (1, b"x", "verify"),
    ]
    assert (chunks[0].text, stream.truncated_bytes) == ("a\ufffd", 7)


@pytest.mark.parametrize("first", [broken, events], ids=["reset", "closed"])
def test_broken_stream_goes_on_after_the_last_chunk_seen(first) -> None:
    server = Server(
        first(chunk_event(0), chunk_event(1)),
        httpx.ConnectError("refused"),
        events(chunk_event(1), chunk_event(2), END_EVENT),
    )
    assert [chunk.seq for chunk in server.client.iter_logs(ATTEMPT_ID)] == [0, 1, 2]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "1", "1"]


def test_event_cut_in_the_middle_is_read_again() -> None:
    server = Server(broken(chunk_event(0)[:-1]), events(chunk_event(0), END_EVENT))
    assert [chunk.seq for chunk in server.client.iter_logs(ATTEMPT_ID)] == [0]


def test_start_after_a_chunk_is_asked_for() -> None:
    server = Server(events(chunk_event(8), END_EVENT))
    assert [chunk.seq for chunk in server.client.iter_logs(ATTEMPT_ID, after=7)] == [8]
    assert server.requests[0].headers["Last-Event-ID"] == "7"


def test_progress_renews_the_patience() -> None:
    parts = [broken(chunk_event(seq)) for seq in range(20)]
    server = Server(*parts, events(END_EVENT), retry=RetryPolicy(attempts=2))
    assert len(list(server.client.iter_logs(ATTEMPT_ID))) == 20


def test_server_that_stays_away_ends_the_stream() -> None:
    server = Server(*([httpx.ConnectError("refused")] * 3), retry=RetryPolicy(attempts=3))
    with pytest.raises(ConnectionLostError):
        next(server.client.iter_logs(ATTEMPT_ID))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(404, "not_found", NotFoundError), (401, "unauthenticated", UnauthenticatedError)],
)
def test_refusal_is_not_repeated(status: int, code: str, expected: type[Exception]) -> None:
    server = Server(events(chunk_event(0)), httpx.Response(status, json=make_error(code)))
    stream = server.client.iter_logs(ATTEMPT_ID)
    next(stream)
    with pytest.raises(expected):
        next(stream)


@pytest.mark.parametrize("data", ["{", "[]", '{"seq": true}', '{"seq": 1, "b64": "*"}'])
def test_event_of_a_stranger_is_refused(data: str) -> None:
    server = Server(events(f"data: {data}\n\n".encode()))
    with pytest.raises(ProtocolError):
        next(server.client.iter_logs(ATTEMPT_ID))


def test_pages_are_read_to_what_there_is() -> None:
    def page(items: list[int], following: str | None) -> httpx.Response:
        chunks = [make_chunk(seq) for seq in items]
        return httpx.Response(
            200, json={"items": chunks, "next_cursor": following, "closed": False, "truncated_bytes": 0}
        )

    server = Server(page([0, 1], "1"), page([2], "2"), page([], "2"))
    assert [chunk.seq for chunk in server.client.iter_logs(ATTEMPT_ID, follow=False)] == [0, 1, 2]
    assert [request.url.params["after"] for request in server.requests] == ["-1", "1", "2"]


def test_closing_early_gives_the_connection_free() -> None:
    body = BrokenStream([chunk_event(0)] * 3, lambda: AssertionError("read on after the close"))
    server = Server(httpx.Response(200, stream=body))
    with server.client.iter_logs(ATTEMPT_ID) as stream:
        next(stream)
    assert list(stream) == []
