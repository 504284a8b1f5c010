"""One scheduler leads; who follows counts on; and nobody is judged right after the database was away."""

import time

import pytest

from scheduler import leader
from scheduler.leader import Leadership


@pytest.fixture
def candidates(database_url):
    found = [Leadership(database_url), Leadership(database_url)]
    yield found
    for candidate in found:
        candidate.release()


def follow(candidate: Leadership) -> None:
    """Try until the server has noticed that the holder's connection is closed."""
    for _ in range(100):
        candidate.try_or_check()
        if candidate.held:
            return
        time.sleep(0.05)


def test_one_leads_and_the_next_counts_on(candidates, world):
    first, second = candidates
    first.try_or_check()
    second.try_or_check()
    assert (first.held, second.held) == (True, False)
    assert first.epoch == 1
    first.release()
    follow(second)
    assert (first.held, second.held) == (False, True)
    row = world.execute("SELECT * FROM leader")[0]
    assert (row["name"], row["epoch"], second.epoch) == ("scheduler", 2, 2)


def test_time_in_which_nobody_is_judged_starts_anew_after_a_standstill(candidates, monkeypatch):
    first, _ = candidates
    first.try_or_check()
    began = first.since
    first.try_or_check()
    assert first.since == began
    monkeypatch.setattr(leader, "_STANDSTILL_SECONDS", 0.0)  # every check takes longer than that
    first.try_or_check()
    assert first.held
    assert first.since > began


def test_lost_connection_ends_the_leadership(candidates, world):
    first, second = candidates
    first.try_or_check()
    world.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'sandmill-leader' AND datname = current_database()"
    )
    first.try_or_check()
    assert not first.held
    follow(second)
    assert second.held
