import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.events import MAX_EVENT_BYTES, LineHolder, frame, output_frames, split_lines

CHUNKS = st.lists(
    st.one_of(st.binary(max_size=40), st.text("ab\n\r€😀", max_size=20).map(str.encode)), max_size=12
)


def cut(chunks: list[bytes], *, splits_at_cr: bool = False) -> list[bytes]:
    holder = LineHolder(splits_at_cr=splits_at_cr)
    blocks = [block for chunk in chunks for block in holder.feed(chunk)] + holder.flush()
    return [line for block in blocks for line in split_lines(block, splits_at_cr=splits_at_cr)]


def shown(pieces: list[bytes], *, strip_newlines: bool) -> list[str]:
    frames = output_frames("stdout", pieces, 0, strip_newlines=strip_newlines)
    return [json.loads(line)["text"] for line in frames.split(b"\n\n")[:-1]]


@given(CHUNKS)
def test_the_pieces_joined_are_the_stream_and_each_is_one_line(chunks: list[bytes]) -> None:
    pieces = cut(chunks)
    assert b"".join(pieces) == b"".join(chunks)
    assert all(piece.endswith(b"\n") and piece.count(b"\n") == 1 for piece in pieces[:-1])
    assert all(pieces)


@given(CHUNKS)
def test_cutting_does_not_depend_on_how_the_stream_was_read(chunks: list[bytes]) -> None:
    for splits_at_cr in (False, True):
        together = cut([b"".join(chunks)], splits_at_cr=splits_at_cr)
        assert cut(chunks, splits_at_cr=splits_at_cr) == together
        assert b"".join(together) == b"".join(chunks)


@given(CHUNKS)
def test_the_older_form_has_no_line_ends(chunks: list[bytes]) -> None:
    expected = [line or b"\n" for line in b"".join(chunks).splitlines()]
    texts = shown(cut(chunks, splits_at_cr=True), strip_newlines=True)
    assert texts == [line.decode("utf-8", "replace") for line in expected]


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
@pytest.mark.parametrize("offset", range(4))
def test_long_lines_are_cut_between_characters(character: str, offset: int) -> None:
    data = b"a" * offset + (character * 90_000).encode()
    pieces = cut([data[i : i + 7000] for i in range(0, len(data), 7000)])
    assert b"".join(pieces) == data
    assert all(len(piece) <= MAX_EVENT_BYTES for piece in pieces)
    for piece in pieces:
        piece.decode()


def test_long_lines_of_no_encoding_are_cut_at_the_limit() -> None:
    pieces = cut([b"\x80" * (MAX_EVENT_BYTES + 5)])
    assert [len(piece) for piece in pieces] == [MAX_EVENT_BYTES, 5]


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_frames_carry_the_exact_bytes(pieces: list[bytes]) -> None:
    frames = output_frames("stdout", pieces, 7, strip_newlines=False)
    assert frames.isascii()
    lines = frames.split(b"\n\n")
    assert lines.pop() == b""
    offset = 7
    for line, piece in zip(lines, pieces, strict=True):
        event = json.loads(line)
        offset += len(piece)
        assert event["offset"] == offset
        assert event["type"] == "stdout"
        assert isinstance(event["timestamp"], int)
        try:
            assert event["text"] == piece.decode()
            assert "b64" not in event
        except UnicodeDecodeError:
            assert event["text"] == piece.decode("utf-8", "replace")
            assert b64decode(event["b64"]) == piece


def test_a_frame_is_one_line_and_an_empty_one() -> None:
    data = frame("error", error={"evalue": "a\nb"})
    assert data.endswith(b"}\n\n")
    assert data.count(b"\n") == 2
    assert list(json.loads(data)) == ["type", "error", "timestamp"]
