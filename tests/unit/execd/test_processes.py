import os
import signal

import pytest

from execd import processes
from execd.processes import Origin, ProcessInfo, belonging_to, descendants_of

EXECD = 10


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Execution ids in the environments of processes; those not named have none."""
    found: dict[int, str] = {}
    monkeypatch.setattr(processes, "_execution_id_of", found.get)
    return found


def table(*rows: tuple[int, int, int, int]) -> dict[int, ProcessInfo]:
    """Rows of pid, parent, session and start; the group is the session. init and execd are always there."""
    everything = [(1, 0, 1, 0), (EXECD, 1, 1, 1), *rows]
    return {pid: ProcessInfo(pid, ppid, sid, sid, start) for pid, ppid, sid, start in everything}


A = Origin(100, 50, "a")
B = Origin(200, 60, "b")


def test_children_and_session_members_belong(ids: dict[int, str]) -> None:
    processes_now = table(
        (100, EXECD, 100, 50), (101, 100, 100, 51), (102, 101, 102, 52), (103, EXECD, 100, 53)
    )
    ids |= {103: "b"}
    assert belonging_to(A, [], processes_now, adopter=EXECD) == {100, 101, 102, 103}


def test_orphans_belong_by_their_environment(ids: dict[int, str]) -> None:
    ids |= {110: "a", 111: "b", 112: "older"}
    orphans = table((110, EXECD, 110, 70), (111, EXECD, 111, 70), (112, EXECD, 112, 70), (120, 110, 110, 71))
    assert belonging_to(A, [B], orphans, adopter=EXECD) == {110, 120}
    assert belonging_to(B, [A], orphans, adopter=EXECD) == {111}


def test_an_orphan_without_environment_belongs_to_all_that_ran_when_it_started(ids: dict[int, str]) -> None:
    orphans = table(
        (110, EXECD, 110, 70), (111, EXECD, 111, 55), (112, EXECD, 112, 40), (113, EXECD, 200, 70)
    )
    assert belonging_to(A, [B], orphans, adopter=EXECD) == {110, 111}
    assert belonging_to(B, [A], orphans, adopter=EXECD) == {110, 113}


def test_other_commands_their_families_init_and_execd_are_never_included(ids: dict[int, str]) -> None:
    everything = table((100, EXECD, 100, 50), (200, EXECD, 200, 60), (201, 200, 201, 61), (300, 1, 300, 70))
    assert belonging_to(A, [B], everything, adopter=EXECD) == {100}
    assert belonging_to(B, [A], everything, adopter=EXECD) == {200, 201}


def test_descendants_are_those_by_parentage_and_nothing_above() -> None:
    everything = table((100, EXECD, 100, 50), (101, 100, 101, 51), (300, 1, 300, 70), (301, 300, 10, 71))
    assert descendants_of(EXECD, everything) == {100, 101}
    assert descendants_of(101, everything) == set()


def test_an_adopter_that_is_none_is_refused(ids: dict[int, str]) -> None:
    with pytest.raises(ValueError, match="adopter"):
        belonging_to(A, [], table(), adopter=0)


def test_init_and_oneself_are_never_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    processes.send_signal([-1, 0, 1, os.getpid(), 77], signal.SIGKILL)
    assert sent == [77]
