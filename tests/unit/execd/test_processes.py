import asyncio
import os
import signal
import subprocess

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
    orphans = table((110, EXECD, 110, 70), (111, EXECD, 111, 70), (112, EXECD, 112, 40), (120, 110, 110, 71))
    assert belonging_to(A, [B], orphans, adopter=EXECD) == {110, 120}
    assert belonging_to(B, [A], orphans, adopter=EXECD) == {111}


def test_an_orphan_that_forges_its_name_does_not_escape(ids: dict[int, str]) -> None:
    ids |= {110: "forged", 111: "b"}
    orphans = table((110, EXECD, 110, 70), (111, EXECD, 111, 70))
    assert belonging_to(A, [], orphans, adopter=EXECD) == {110, 111}
    assert belonging_to(A, [B], orphans, adopter=EXECD) == {110}


def test_an_orphan_older_than_the_command_it_names_does_not_escape(ids: dict[int, str]) -> None:
    ids |= {110: "b"}
    orphans = table((110, EXECD, 110, 55))
    assert belonging_to(A, [B], orphans, adopter=EXECD) == {110}


def test_orphans_that_were_there_before_are_spared_even_in_the_same_tick(ids: dict[int, str]) -> None:
    later = Origin(100, 50, "a", frozenset({(110, 50)}))
    orphans = table((110, EXECD, 110, 50), (111, EXECD, 111, 50))
    assert belonging_to(later, [], orphans, adopter=EXECD) == {111}
    reused = table((110, EXECD, 110, 51))
    assert belonging_to(later, [], reused, adopter=EXECD) == {110}


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


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would have been sent; none is."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def test_process_1_does_not_trust_a_listing_in_which_somebody_vanished(
    monkeypatch: pytest.MonkeyPatch, signals: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(processes, "_scan", lambda *, adopter: ({}, False))
    assert asyncio.run(processes.kill_until_gone(lambda _table: set()))
    assert signals == [(-1, signal.SIGSTOP), (-1, signal.SIGCONT)]


def test_elsewhere_processes_that_vanish_are_none_of_its_business(
    monkeypatch: pytest.MonkeyPatch, signals: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(processes, "_scan", lambda *, adopter: ({}, False))
    assert asyncio.run(processes.kill_until_gone(lambda _table: set()))
    assert signals == []


def test_only_process_1_may_stop_all_others(signals: list[tuple[int, int]]) -> None:
    with pytest.raises(RuntimeError):
        processes._kill_at_standstill(lambda _table: set())
    assert signals == []


def test_own_children_are_found_with_their_start() -> None:
    with subprocess.Popen(["sleep", "99"]) as child:
        assert (child.pid, processes.process_start(child.pid)) in processes.adopted_by(os.getpid())
        table_now, _ = processes._scan(adopter=os.getpid())
        assert table_now[child.pid].ppid == os.getpid()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        without_the_dead, is_conclusive = processes._scan(adopter=os.getpid())
    assert child.pid not in without_the_dead
    assert not is_conclusive
