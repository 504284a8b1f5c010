import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ExecdUnreachableError
from runtimes.events import EventParser, event_bytes, result_of


def frames(*events):
    return b"".join(json.dumps(event).encode() + b"\n\n" for event in events)


@given(st.lists(st.integers(1, 40), max_size=60), st.lists(st.text(max_size=20), max_size=20))
def test_events_are_the_same_however_the_bytes_are_cut(cuts, texts):
    events = [{"type": "stdout", "text": text, "timestamp": 1} for text in texts]
    stream, parser, got = frames(*events), EventParser(), []
    for cut in cuts:
        got += parser.feed(stream[:cut])
        stream = stream[cut:]
    assert [*got, *parser.feed(stream)] == events


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[1]\n", b"{}\n", b'{"type":1}\n', b"\xff\n", b"[" * 100_000 + b"\n", b"x" * (1 << 21)],
    ids=["text", "list", "no-type", "number-type", "bytes", "deep", "endless"],
)
def test_what_is_no_event_is_a_broken_daemon(line):
    with pytest.raises(ExecdUnreachableError):
        list(EventParser().feed(line))


def test_endless_line_in_small_pieces_is_cut_off():
    parser = EventParser()
    pieces = [b"x" * (64 << 10)] * 40
    with pytest.raises(ExecdUnreachableError, match="more than"):
        _ = [list(parser.feed(piece)) for piece in pieces]


@given(st.binary(max_size=200))
def test_exact_bytes_come_out_of_base64(data):
    event = {"type": "stderr", "text": "?", "b64": base64.b64encode(data).decode()}
    assert event_bytes(event) == ("stderr", data)


def test_text_becomes_utf8():
    assert event_bytes({"type": "stdout", "text": "é\n"}) == ("stdout", "é\n".encode())
    assert event_bytes({"type": "ping", "text": "pong"}) is None


@pytest.mark.parametrize(
    "event", [{"type": "stdout"}, {"type": "stdout", "text": 1}, {"type": "stdout", "b64": "!"}]
)
def test_output_without_bytes_is_a_broken_daemon(event):
    with pytest.raises(ExecdUnreachableError):
        event_bytes(event)


OK = {"exit_code": 0, "signal": None, "timed_out": False, "interrupted": False, "error": None}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "execution_complete", "execution_time": 12}, {**OK}),
        ({"type": "execution_complete", "exit_code": 0, "reason": "exit"}, {**OK}),
        ({"type": "error", "error": {"evalue": "3"}}, {**OK, "exit_code": 3}),
        (
            {"type": "error", "error": {"evalue": "3"}, "exit_code": 3, "reason": "exit"},
            {**OK, "exit_code": 3},
        ),
        (
            {"type": "error", "error": {"evalue": "-1"}, "exit_code": None, "signal": 11, "reason": "signal"},
            {**OK, "exit_code": None, "signal": 11},
        ),
        (
            {"type": "error", "error": {"evalue": "-1"}, "signal": 9, "reason": "timeout"},
            {**OK, "exit_code": None, "signal": 9, "timed_out": True},
        ),
        (
            {"type": "error", "error": {"evalue": "-1"}, "signal": 15, "reason": "killed_by_client"},
            {**OK, "exit_code": None, "signal": 15, "interrupted": True},
        ),
        (
            {"type": "error", "error": {"evalue": "no such file"}, "reason": "start_failed"},
            {**OK, "exit_code": None, "error": "no such file"},
        ),
        (
            {"type": "error", "error": {"evalue": "no such file"}},
            {**OK, "exit_code": None, "error": "no such file"},
        ),
        ({"type": "error", "error": None, "reason": "exit", "exit_code": True}, {**OK, "exit_code": None}),
        ({"type": "error", "reason": "exit", "exit_code": 1, "execution_time": -5}, {**OK, "exit_code": 1}),
    ],
)
def test_terminal_event_becomes_a_result(event, expected):
    result = result_of(event, interrupted=False)
    assert result is not None
    assert {name: getattr(result, name) for name in expected} == expected
    assert result.duration_ms >= 0


def test_other_events_are_no_result():
    assert result_of({"type": "stdout", "text": ""}, interrupted=False) is None
    assert result_of({"type": "execution_complete"}, interrupted=True).interrupted
