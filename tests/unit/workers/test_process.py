import pytest
from sqlalchemy.exc import OperationalError

from workers import process


class Node:
    """Starts when the database has come back."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.is_started = False

    def start(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OperationalError("SELECT 1", {}, Exception("connection refused"))
        self.is_started = True


def test_worker_waits_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch):
    pauses = []
    monkeypatch.setattr(process.time, "sleep", pauses.append)
    node = Node(failures=3)
    process._start_when_possible(node)
    assert node.is_started
    assert pauses == [0.2, 0.4, 0.8]


def test_worker_that_cannot_start_ends_instead_of_idling(monkeypatch: pytest.MonkeyPatch):
    class Broken(Node):
        def start(self) -> None:
            raise RuntimeError("boom")

    class Exited(BaseException):
        pass

    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(process.os, "_exit", leave)
    with pytest.raises(Exited, match="1"):
        process._start_when_possible(Broken(0))
