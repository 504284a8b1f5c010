import os

from execd.families import Families
from execd.processes import Origin, ProcessInfo

ME = os.getpid()


def origin(pid: int, name: str) -> Origin:
    return Origin(pid, start_ticks=10, execution_id=name)


def process(pid: int, ppid: int = ME, sid: int | None = None, start: int = 20) -> ProcessInfo:
    return ProcessInfo(pid, ppid, sid or pid, sid or pid, start)


def test_what_another_family_runs_is_not_ours() -> None:
    families = Families()
    terminal, command = origin(900_001, "a"), origin(900_002, "b")
    families.add(terminal)
    families.add(command)
    table = {info.pid: info for info in (process(900_001), process(900_002), process(900_003, ppid=900_002))}
    assert families.members(terminal, table) == {900_001}
    assert families.members(command, table) == {900_002, 900_003}
    assert families.besides(terminal) == [command]


def test_an_orphan_without_a_name_is_of_the_family_that_asks() -> None:
    families = Families()
    families.add(origin(900_001, "a"))
    table = {900_004: process(900_004)}
    assert families.members(origin(900_001, "a"), table) == {900_004}


def test_the_number_of_a_main_process_that_is_gone_means_nothing() -> None:
    families = Families()
    ours, other = origin(900_001, "a"), origin(900_002, "b")
    families.add(ours)
    families.add(other)
    families.lose_head(ours)
    stranger = process(900_001, ppid=900_009)
    assert families.members(ours, {900_001: stranger}) == set()
    assert [known.pid for known in families.besides(other)] == [-1]


def test_families_that_ended_are_remembered_up_to_a_bound() -> None:
    families = Families()
    for number in range(2000):
        families.add(origin(number + 2, f"x{number}"))
        families.discard(origin(number + 2, f"x{number}"))
    assert families.besides(origin(1, "y")) == []
    assert len(families._ended) == 1024
