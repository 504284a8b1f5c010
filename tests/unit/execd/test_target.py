import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidQueryError, MissingQueryError
from execd.target import parse_target, percent_encode


def test_path_and_query_are_decoded() -> None:
    target = parse_target(b"/a%20b?x=1&x=2&y=a+b%2B&z&&empty=")
    assert target.path == "/a b"
    assert target.query == {"x": ["1", "2"], "y": ["a b+"], "z": [""], "empty": [""]}


@given(st.binary())
def test_any_bytes_make_the_round_trip(raw: bytes) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in raw)
    value = parse_target(f"/?p={encoded}".encode()).required("p")
    assert os.fsencode(value) == raw
    assert parse_target(f"/?p={percent_encode(value)}".encode()).required("p") == value
    assert percent_encode(value).isascii()


@pytest.mark.parametrize("raw", [b"", b"*", b"a", b"http://h/", b"/%", b"/%1", b"/%zz", b"/?a=%g0"])
def test_other_targets_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidQueryError):
        parse_target(raw)


def test_parameters_are_single_and_numbers_bounded() -> None:
    target = parse_target(b"/?a=1&a=2&n=5&big=99999999999999999999&neg=-1&uni=%d9%a3")
    with pytest.raises(InvalidQueryError, match="repeated"):
        target.required("a")
    with pytest.raises(MissingQueryError):
        target.required("b")
    assert target.optional("b") is None
    assert target.whole_number("n", default=1, maximum=5) == 5
    assert target.whole_number("none", default=1, maximum=5) == 1
    for name in ("big", "neg", "uni"):
        with pytest.raises(InvalidQueryError, match=name):
            target.whole_number(name, default=1, maximum=5)
