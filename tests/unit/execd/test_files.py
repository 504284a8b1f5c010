import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.downloads import ByteRange, line_window, parse_range
from execd.errors import BadRangeError, InvalidBodyError, InvalidQueryError
from execd.file_requests import Replacement, parse_mode
from execd.files import NamePattern, _timestamp
from execd.rewriting import Rewriter


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "x", True),
        ("*", ".hidden", True),
        ("**", "x", True),
        ("**/*.py", "x.py", True),
        ("**/**/*.py", "x.py", True),
        ("a/*.py", "x.py", False),
        ("*.py", "x.PY", False),
        ("x.p", "x.py", False),
        ("[a-c]?", "b1", True),
        ("[!a-c]?", "b1", False),
        ("[", "[", True),
        ("[]]", "]", True),
        ("{a,b}", "b", True),
        ("{a,b", "{a,b", True),
        ("a,b}", "a,b}", True),
        ("{a,{b,c}d}", "cd", True),
        ("{,x}y", "y", True),
        ("*", "new\nline", True),
        ("a.b", "axb", False),
        ("(a|b)+", "a", False),
    ],
)
def test_patterns(pattern: str, name: str, *, matches: bool) -> None:
    assert NamePattern(pattern).matches(name) is matches


def test_patterns_with_too_many_alternatives_are_refused() -> None:
    assert NamePattern("{a,b}" * 8).matches("a" * 8)
    for pattern in ("{a,b}" * 9, "{" + "," * 300 + "}", "x" * 1025):
        with pytest.raises(InvalidQueryError, match="pattern"):
            NamePattern(pattern)


def test_many_stars_do_not_multiply() -> None:
    started = time.process_time()
    assert not NamePattern("*a" * 200 + "b").matches("a" * 255)
    assert time.process_time() - started < 1


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 100))
def test_a_range_is_inside_the_file_or_refused(first: int, last: int, size: int) -> None:
    header = f"bytes={first}-{last}"
    if first <= last and first < size:
        assert parse_range(header, size) == ByteRange(first, min(last, size - 1))
    else:
        with pytest.raises(BadRangeError):
            parse_range(header, size)


def test_an_empty_file_has_no_range() -> None:
    assert parse_range(None, 0) is None
    for header in ("bytes=0-", "bytes=-1", "bytes=0-0"):
        with pytest.raises(BadRangeError):
            parse_range(header, 0)


@pytest.mark.parametrize(
    ("value", "mode"), [(644, 0o644), (None, None), (0, None), (1777, 0o1777), (6755, 0o755), (7, 7)]
)
def test_modes_look_octal(value: int | None, mode: int | None) -> None:
    assert parse_mode("mode", value) == mode


@pytest.mark.parametrize("value", [8, 648, 10000, -1, True, False, "644", 6.0, []])
def test_other_modes_are_refused(value: object) -> None:
    with pytest.raises(InvalidBodyError, match="mode"):
        parse_mode("mode", value)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_500_000_000_123_456_789, "2017-07-14T02:40:00.123456Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (10**30, "9999-12-31T23:59:59.000000Z"),
        (-(10**30), "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_rfc_3339_at_any_value(nanoseconds: int, text: str) -> None:
    assert _timestamp(nanoseconds) == text


@given(st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\n\n", b""])), st.integers(1, 6), st.integers(0, 6))
def test_a_window_of_lines_is_what_splitting_gives(chunks: list[bytes], first: int, count: int) -> None:
    content = b"".join(chunks)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    expected = lines[first - 1 : first - 1 + count] if count else lines[first - 1 :]
    pieces = line_window(iter(chunks), first=first, count=count or None)
    assert b"".join(pieces) == b"\n".join(expected)


@given(st.lists(st.binary(max_size=6)), st.binary(min_size=1, max_size=3), st.binary(max_size=3))
def test_replacing_in_pieces_is_replacing_in_the_whole(chunks: list[bytes], old: bytes, new: bytes) -> None:
    content = b"".join(chunks)
    rewriter = Rewriter(Replacement(old, new))
    assert b"".join(rewriter.pieces(iter(chunks))) == content.replace(old, new)
    assert rewriter.count == content.count(old)


def test_replacing_by_a_longer_text_comes_in_bounded_pieces() -> None:
    rewriter = Rewriter(Replacement(b"a", b"x" * 1000))
    pieces = list(rewriter.pieces(iter([b"a" * 10_000])))
    assert sum(map(len, pieces)) == 10_000_000
    assert max(map(len, pieces)) < 2_000_000
