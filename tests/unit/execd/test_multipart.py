import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.multipart import BrokenMultipartError, MultipartParser, PartBegin, PartData, PartEnd, boundary_of

Parsed = list[tuple[str, str | None, bytes]]

NASTY = st.lists(
    st.sampled_from([b"\r\n", b"--", b"b", b"\r\n--", b"\r\n--b", b"\r", b"\n", b"x", b"\r\n\r\n"]),
    max_size=12,
).map(b"".join)


def parse(body: bytes, *, boundary: bytes = b"bound", sizes: list[int] | None = None) -> Parsed:
    parser = MultipartParser(boundary)
    parts: Parsed = []
    pieces: list[bytes] = []
    sizes = sizes or [len(body)]
    position = 0
    while position < len(body):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        for event in parser.feed(body[position : position + size]):
            if isinstance(event, PartBegin):
                parts.append((event.name, event.filename, b""))
                pieces = []
            elif isinstance(event, PartData):
                pieces.append(event.data)
            else:
                assert isinstance(event, PartEnd)
                parts[-1] = (*parts[-1][:2], b"".join(pieces))
        position += size
    parser.close()
    return parts


def encode(parts: Parsed, boundary: bytes = b"bound") -> bytes:
    body = b""
    for name, filename, data in parts:
        suffix = f'; filename="{filename}"' if filename is not None else ""
        head = f'--{boundary.decode()}\r\nContent-Disposition: form-data; name="{name}"{suffix}\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    return body + b"--" + boundary + b"--\r\n"


@given(
    st.lists(
        st.tuples(st.sampled_from(["metadata", "file"]), st.none() | st.just("f é"), st.binary() | NASTY),
        max_size=4,
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
def test_parts_come_back_however_the_body_is_split(parts: Parsed, sizes: list[int]) -> None:
    assert parse(encode(parts), sizes=sizes) == parts


@given(st.binary() | NASTY)
def test_no_body_breaks_the_parser_in_another_way(body: bytes) -> None:
    with contextlib.suppress(BrokenMultipartError):
        parse(body, boundary=b"b")


def test_it_holds_no_more_than_a_delimiter_of_data() -> None:
    parser = MultipartParser(b"bound")
    head = b'--bound\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    list(parser.feed(head))
    given = sum(len(e.data) for _ in range(50) for e in parser.feed(b"x" * 10_000) if isinstance(e, PartData))
    assert 500_000 - given <= 10


def test_preamble_padding_and_epilogue_are_passed_over() -> None:
    part = b"\r\ncontent-disposition:form-data;name=a\r\nContent-Type: text/plain\r\n\r\n1\r\n--bound--"
    assert parse(b"preamble\r\n--bound \t" + part + b"\r\nepilogue\r\n--bound\r\n") == [("a", None, b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--bound",
        b"--bound\r\n",
        b"--other\r\n\r\n--other--",
        b"--boundary\r\n\r\n--boundary--",
        b"--bound\r\n\r\nno headers\r\n--bound--",
        b"--bound\r\nContent-Type: text/plain\r\n\r\nx\r\n--bound--",
        b"--bound\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--bound--",
        b"--bound\r\nContent-Disposition: form-data\r\n\r\nx\r\n--bound--",
        b"--bound\r\nno colon\r\n\r\nx\r\n--bound--",
        b"--bound\r\nX: " + b"a" * 20_000 + b"\r\n\r\nx\r\n--bound--",
        b"x" * 100_000,
        b'--bound\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--bound',
        b'--bound\r\nContent-Disposition: form-data; name="a"\r\n\r\nx--bound--',
    ],
    ids=range(14),
)
def test_broken_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BrokenMultipartError):
        parse(body, sizes=[1000])


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; BOUNDARY="a b;c"', b"a b;c"),
        ("multipart/form-data;boundary=opensandbox_0a_17", b"opensandbox_0a_17"),
    ],
)
def test_boundaries(content_type: str, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain; boundary=a",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "a" * 201,
    ],
)
def test_content_types_without_a_boundary_are_refused(content_type: str | None) -> None:
    with pytest.raises(BrokenMultipartError):
        boundary_of(content_type)


def test_quoted_names_may_hold_escapes() -> None:
    body = (
        b'--bound\r\nContent-Disposition: form-data; name="a\\"b"; filename="x;y=\\\\z"\r\n\r\n\r\n--bound--'
    )
    assert parse(body) == [('a"b', "x;y=\\z", b"")]
