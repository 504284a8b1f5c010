"""Whatever is killed: the rest goes with it, and the next start has all the data."""

import os
import signal
import time
from pathlib import Path

import psycopg
import pytest
import redis

from launcher.service import wait_until_ready
from launcher.supervisor import Supervisor
from tests.support.launching import hold_services, in_chroot, processes_of, start_holder, wait_until

DEATH_SECONDS = 3.0


def write(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("kept", *range(1000))


def count(database_url: str, redis_url: str) -> tuple[int, int]:
    with psycopg.connect(database_url) as connection, redis.Redis.from_url(redis_url) as client:
        return connection.execute("SELECT count(*) FROM kept").fetchone()[0], client.llen("kept")


@pytest.mark.parametrize("way", ["as_we_are", "dropped_to_nobody"])
def test_killed_launcher_takes_its_children_along_and_the_next_has_the_data(tmp_path, way):
    prefix = in_chroot(tmp_path / "root") if way == "dropped_to_nobody" else []
    home = tmp_path / "home"
    with hold_services(home, prefix=prefix) as holder:
        write(holder.database_url, holder.redis_url)
        with redis.Redis.from_url(holder.redis_url) as client:
            # Flushed once a second: until then a kill may lose it, by design.
            client.waitaof(1, 0, 5000)
        holder.process.kill()
        took = wait_until(lambda: processes_of(home) == [], timeout_seconds=DEATH_SECONDS)
    with hold_services(home, prefix=prefix) as holder:
        assert count(holder.database_url, holder.redis_url) == (1000, 1000)
    assert took < DEATH_SECONDS


def test_start_right_after_a_kill_waits_for_the_orphans(tmp_path):
    home = tmp_path / "home"
    with hold_services(home) as holder:
        write(holder.database_url, holder.redis_url)
        postgres = holder.pids["postgres"]
        os.kill(postgres, signal.SIGSTOP)  # an orphan that takes its time
        holder.process.kill()
        holder.process.wait()
    with start_holder(home) as starting:
        wait_until(lambda: (home / "launcher.lock").exists() and is_waiting_for_lock(starting.pid, home))
        os.kill(postgres, signal.SIGCONT)
        assert starting.stdout.readline().startswith("{")


def is_waiting_for_lock(pid: int, home: Path) -> bool:
    """Whether the launcher has opened the second lock but started nothing."""
    lock = home / "children.lock"
    try:
        return any(descriptor.samefile(lock) for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


@pytest.mark.parametrize("victim", ["postgres", "valkey"])
def test_killed_server_is_started_again_with_its_data(own_services, victim):
    write(own_services.database_url, own_services.redis_url)
    services = [own_services.postgres, own_services.valkey]
    with redis.Redis.from_url(own_services.redis_url) as client:
        client.waitaof(1, 0, 5000)
    said: list[str] = []
    supervisor = Supervisor(services, report=said.append)
    supervisor.step(time.monotonic())
    killed = next(service for service in services if service.name == victim)
    old = killed.child.pid

    os.kill(old, signal.SIGKILL)
    wait_until(killed.has_ended)
    wait_until(lambda: restarted(supervisor, killed, old))
    wait_until_ready(services)

    assert count(own_services.database_url, own_services.redis_url) == (1000, 1000)
    assert said[0].startswith(f"{victim} ended (signal 9")


def restarted(supervisor: Supervisor, service, old: int) -> bool:
    supervisor.step(time.monotonic())
    return service.child.pid != old and not service.has_ended()


def test_stale_pid_file_that_names_a_living_process_is_no_obstacle(tmp_path):
    home = tmp_path / "home"
    with hold_services(home):
        pass
    pid_file = home / "state" / "pg18" / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{pid_file.parent}\n0\n5432\n\n\n\n")
    with hold_services(home) as holder, psycopg.connect(holder.database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
