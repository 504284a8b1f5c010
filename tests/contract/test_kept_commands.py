"""Commands that outlive their client: the next one goes on exactly where the last one was."""

import secrets
import threading

import pytest

from core.errors import NotFoundError
from runtimes.base import Command, KeptRun


class GoneError(Exception):
    """The client is gone in the middle of its work."""


@pytest.fixture
def key():
    return secrets.token_hex(8)


class Reader:
    """Takes output, and goes after so many bytes."""

    def __init__(self, goes_after: int | None = None) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.goes_after = goes_after

    def __call__(self, stream, data):
        self.got.append((stream, data))
        if self.goes_after is not None and self.count >= self.goes_after:
            raise GoneError

    @property
    def count(self) -> int:
        return sum(len(data) for _, data in self.got)

    def of(self, stream: str) -> bytes:
        return b"".join(data for name, data in self.got if name == stream)


def leave_after(box, command, key, count, *, offset=0, is_started=False):
    """Run it with a client that goes after so many bytes; gives what that one had."""
    reader = Reader(count)
    with pytest.raises(GoneError):
        box.client.run(command, on_output=reader, kept=KeptRun(key, offset, is_started))
    return reader


def test_several_clients_in_a_row_have_all_of_the_output_once(shared_box, key):
    """Far more than execd keeps for those who look on: it waits for whoever comes next."""
    command = Command(shell="seq 1 600000; echo end >&2; exit 7")
    first = leave_after(shared_box, command, key, 10_000)
    second = leave_after(shared_box, command, key, 2_500_000, offset=first.count, is_started=True)
    last = Reader()
    result = shared_box.client.run(
        command, on_output=last, kept=KeptRun(key, first.count + second.count, is_started=True)
    )
    assert (result.exit_code, result.missing_bytes) == (7, 0)
    expected = b"".join(b"%d\n" % number for number in range(1, 600_001))
    assert first.of("stdout") + second.of("stdout") + last.of("stdout") == expected
    assert last.of("stderr") == b"end\n"


def test_what_was_sent_but_not_kept_by_the_first_comes_again(shared_box, key):
    command = Command(shell="seq 1 200000")
    first = leave_after(shared_box, command, key, 1_000_000)
    again = Reader()
    shared_box.client.run(command, on_output=again, kept=KeptRun(key, first.count - 500_000))
    whole = b"".join(b"%d\n" % number for number in range(1, 200_001))
    assert again.of("stdout") == whole[first.count - 500_000 :]


def test_end_that_nobody_saw_is_told_later(shared_box, key):
    command = Command(shell="echo begin; sleep 0.2; echo rest; exit 3", timeout_seconds=20)
    first = leave_after(shared_box, command, key, 1)
    shared_box.sh("sleep 0.4")
    last = Reader()
    result = shared_box.client.run(command, on_output=last, kept=KeptRun(key, first.count, is_started=True))
    assert (result.exit_code, last.of("stdout")) == (3, b"rest\n")


def test_timeout_holds_while_nobody_looks(shared_box, key):
    command = Command(shell="echo begin; exec sleep 60", timeout_seconds=0.5)
    leave_after(shared_box, command, key, 1)
    shared_box.sh("sleep 0.7")
    result = shared_box.client.run(command, on_output=Reader(), kept=KeptRun(key, 6, is_started=True))
    assert result.timed_out


def test_next_client_can_stop_it(shared_box, key):
    command = Command(shell="echo begin; exec sleep 60")
    leave_after(shared_box, command, key, 1)
    stop = threading.Event()
    stop.set()
    result = shared_box.client.run(
        command, on_output=Reader(), stop=stop, kill_grace_seconds=1.0, kept=KeptRun(key, is_started=True)
    )
    assert result.interrupted


def test_repeated_start_starts_nothing_twice(shared_box, key):
    command = Command(shell="echo x >> /tmp/starts; cat /tmp/starts")
    for _ in range(2):
        reader = Reader()
        shared_box.client.run(command, on_output=reader, kept=KeptRun(key))
        assert reader.of("stdout") == b"x\n"


def test_what_was_never_started_is_not_attached_to(shared_box, key):
    with pytest.raises(NotFoundError):
        shared_box.client.run(Command(shell="true"), on_output=Reader(), kept=KeptRun(key, is_started=True))
