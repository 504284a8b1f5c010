import h11
import pytest

from execd.errors import InvalidQueryError
from execd.proxy_headers import has_token, request_headers, response_headers, split_target


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"/proxy/80", (80, b"/")),
        (b"/proxy/80/", (80, b"/")),
        (b"/proxy/65535?a", (65535, b"/?a")),
        (b"/proxy/080/x", (80, b"/x")),
        (b"/proxy/1//proxy/2/?/3", (1, b"//proxy/2/?/3")),
    ],
)
def test_a_target_is_cut_behind_the_port(raw: bytes, expected: tuple[int, bytes]) -> None:
    assert split_target(raw, own_port=44772) == expected


@pytest.mark.parametrize(
    "port",
    [b"", b"x", b"0", b"65536", b"-1", b"+1", b"1_0", b"8%30", b"44772", b"0044772", "²".encode("latin-1")],
)
def test_what_is_no_port_of_others_is_refused(port: bytes) -> None:
    with pytest.raises(InvalidQueryError, match="port"):
        split_target(b"/proxy/" + port + b"/", own_port=44772)


def request(*headers: tuple[str, str], method: str = "GET") -> h11.Request:
    return h11.Request(method=method, target="/", headers=[("Host", "h"), *headers])


def test_an_upgrade_keeps_its_headers_only_where_it_is_one() -> None:
    asking = request(
        ("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "k")
    )
    assert request_headers(asking, 1, upgrades=True)[-2:] == [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
    ]
    plain = dict(request_headers(asking, 1, upgrades=False))
    assert b"Upgrade" not in plain
    assert plain[b"Connection"] == b"close"


def test_a_length_beside_chunks_is_dropped() -> None:
    """Two lengths of one body are how requests are smuggled."""
    both = request(("Content-Length", "5"), ("Transfer-Encoding", "chunked"), method="POST")
    headers = [name.lower() for name, _ in request_headers(both, 1, upgrades=False)]
    assert b"content-length" not in headers
    assert headers.count(b"transfer-encoding") == 1
    answer = h11.Response(
        status_code=200, headers=[("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("X", "y")]
    )
    assert response_headers(answer) == [(b"X", b"y")]


def test_tokens_are_found_in_lists_whatever_their_case() -> None:
    headers = request(("Connection", "a"), ("connection", "b , UPGRADE;q=1")).headers
    assert has_token(headers, b"connection", b"upgrade")
    assert not has_token(headers, b"connection", b"up")
    assert not has_token(headers, b"te", b"a")
