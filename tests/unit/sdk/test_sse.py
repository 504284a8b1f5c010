import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandmill import ProtocolError
from sandmill.sse import MAX_EVENT_BYTES, ServerEvent, parse_events


def test_fields_comments_and_names_are_read() -> None:
    stream = b": open\n\nid: 3\nevent: end\nretry: 5\ndata: a\ndata:b\n\ndata\n\n"
    assert list(parse_events([stream])) == [ServerEvent("end", "a\nb", "3"), ServerEvent("message", "", "3")]


def test_unfinished_last_event_is_dropped() -> None:
    assert list(parse_events([b"data: whole\n\n", b"data: cut"])) == [ServerEvent("message", "whole", "")]


def test_event_name_does_not_carry_over_to_the_next_event() -> None:
    assert [event.name for event in parse_events([b"event: end\ndata: 1\n\ndata: 2\n\n"])] == [
        "end",
        "message",
    ]


def test_id_with_nul_is_ignored() -> None:
    assert [event.id for event in parse_events([b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n"])] == ["1", "1"]


def test_byte_order_mark_is_passed_over() -> None:
    assert list(parse_events([b"\xef\xbb\xbfdata: a\n\n"])) == [ServerEvent("message", "a", "")]


def test_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    piece = b"x" * (1 << 20)
    with pytest.raises(ProtocolError):
        list(parse_events([b"data: ", *([piece] * (2 + (MAX_EVENT_BYTES >> 20)))]))
    with pytest.raises(ProtocolError):
        list(parse_events([b"data: " + piece + b"\n"] * (2 + (MAX_EVENT_BYTES >> 20))))


@given(st.data(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_and_line_ends_do_not_matter(data: st.DataObject, line_end: bytes) -> None:
    text = b": c\n\nid: 1\ndata: \xc3\xa4\n\nevent: end\ndata: {}\ndata: 2\n\n"
    wire = text.replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    pieces = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert list(parse_events(pieces)) == list(parse_events([text]))


@given(st.lists(st.binary(max_size=60)))
def test_any_bytes_are_read_without_an_error(pieces: list[bytes]) -> None:
    list(parse_events(pieces))
