from datetime import UTC, datetime

from examples.swe_eval.progress import LineSplitter
from sandmill import LogChunk


def chunk(data: bytes, stream: str = "stdout") -> LogChunk:
    return LogChunk(0, datetime(2026, 1, 1, tzinfo=UTC), stream, "verify", data)


def test_lines_cut_by_chunks_come_out_whole() -> None:
    splitter = LineSplitter()
    assert splitter.feed(chunk("ä".encode()[:1])) == []
    assert splitter.feed(chunk("ä".encode()[1:] + b" b\r\nc")) == ["ä b"]
    assert splitter.feed(chunk(b"\n")) == ["c"]


def test_streams_do_not_mix_within_a_line() -> None:
    splitter = LineSplitter()
    splitter.feed(chunk(b"out"))
    assert splitter.feed(chunk(b"err\n", "stderr")) == ["err"]
    assert splitter.feed(chunk(b"put\n")) == ["output"]


def test_terminal_codes_of_untrusted_output_are_taken_out() -> None:
    assert LineSplitter().feed(chunk(b"\x1b[2Ja\x07\xff\n")) == ["\ufffd[2Ja\ufffd\ufffd"]


def test_line_without_end_does_not_fill_the_memory() -> None:
    splitter = LineSplitter()
    assert sum(len(line) for _ in range(10) for line in splitter.feed(chunk(b"x" * 1000))) >= 4096
