"""No program starts with stores that ask for no password, or with secrets that everybody knows (threat model, T94)."""

import os
import subprocess
import sys

import pytest
from pydantic import SecretStr

from core.config import Settings
from core.errors import SettingError
from core.secret_rules import check_keys, check_store_url, is_loopback, key_warnings

SOUND = {
    "DATABASE_URL": "postgresql://sandmill:hunter2-but-longer@127.0.0.1:1/d",
    "REDIS_URL": "redis://:hunter2-but-longer@127.0.0.1:1/0",
    "SANDMILL_SECRET_KEY": "0123456789abcdef" * 2,
}
PROGRAMS = {
    "api": ["-c", "from api.app import create_app; create_app()"],
    "scheduler": ["-m", "scheduler"],
    "worker": ["-m", "workers"],
    "celery": ["-c", "import workers.app"],
}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d",
        "postgresql://u@h/d",
        "postgresql://u:@h/d",
        "postgresql://u@h/d?password=",
        "redis://",
        "redis://h:6379/0",
        "redis://:@h/0",
        "rediss://h/0",
    ],
)
def test_store_without_a_password_is_refused(url):
    with pytest.raises(SettingError, match=r"^X_URL: must have a password, and the server must ask for it$"):
        check_store_url("X_URL", url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres:postgres@h/d",
        "postgresql://u:Password@h/d",
        "postgresql://u@h/d?password=changeme",
        "postgresql://lab%2Dteam:lab%2Dteam@h/d",
        "redis://:redis@h/0",
        "redis://:change%2Dme@h/0",
    ],
)
def test_password_that_everybody_knows_is_refused_and_not_shown(url):
    with pytest.raises(SettingError, match=r"^X_URL: must have a password of its own") as caught:
        check_store_url("X_URL", url)
    assert url.rpartition(":")[2].partition("@")[0] not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:Zq81-x@h/d",
        "postgresql:///d",
        "postgresql:///d?host=/run/postgresql",
        "postgresql://u@h/d?sslmode=verify-full&sslcert=/etc/client.crt",
        "postgresql://u@h/d?passfile=/etc/pass",
        "redis://:Zq81-x@h/0",
        "unix:///run/valkey.sock",
        "rediss://h/0?ssl_certfile=/etc/client.crt",
    ],
)
def test_other_proofs_are_as_good(url):
    check_store_url("X_URL", url)


@pytest.mark.parametrize(
    ("program", "name", "value"),
    [
        ("api", "SANDMILL_SECRET_KEY", "x" * 40),
        ("api", "SANDMILL_SERVER_API_KEY", "changeme"),
        ("api", "SANDMILL_SERVER_API_KEY", "with a blank"),
        ("api", "SANDMILL_SERVER_API_KEY", "schlüssel"),
        ("scheduler", "DATABASE_URL", "postgresql://sandmill@127.0.0.1:1/d"),
        ("worker", "REDIS_URL", "redis://127.0.0.1:1/0"),
        ("celery", "REDIS_URL", "redis://127.0.0.1:1/0"),
    ],
)
def test_every_program_refuses_to_start_and_names_the_setting(program, name, value):
    kept = {key: text for key, text in os.environ.items() if not key.startswith("SANDMILL_")}
    kept["SANDMILL_CONFIG"] = os.devnull
    done = subprocess.run(
        [sys.executable, *PROGRAMS[program]],
        env={**kept, **SOUND, name: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{program}: {name}: must "), done.stderr
    assert done.stderr.count("\n") == 1
    assert value not in done.stderr


def settings(**values):
    return Settings(database_url=SecretStr("postgresql:"), redis_url=SecretStr("redis:"), **values)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"])
def test_what_this_machine_alone_reaches_is_loopback(host):
    assert is_loopback(host)
    check_keys(settings(insecure_server=True, api_host=host))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example.org", ""]
)
def test_an_api_without_keys_is_refused_where_others_reach_it(host):
    assert not is_loopback(host)
    with pytest.raises(
        SettingError, match=r"^SANDMILL_INSECURE_SERVER: the API listens on .* set \[server\] api_key"
    ):
        check_keys(settings(insecure_server=True, api_host=host))
    # With a key the door is shut.
    check_keys(settings(insecure_server=True, api_host=host, server_api_key=SecretStr("a-key-of-my-own-123")))


@pytest.mark.parametrize(("key", "told"), [("k" * 15, 1), ("k" * 16, 0)])
def test_a_short_key_is_told_and_not_shown(key, told):
    lines = key_warnings(settings(server_api_key=SecretStr(key)))
    warning = "SANDMILL_SERVER_API_KEY: is short enough to be guessed: make one by `openssl rand -hex 24`"
    assert lines == [warning] * told


@pytest.mark.parametrize(
    "text", ["[node]\nsecret_key = '%s'\n" % ("x" * 40), "[server]\napi_key = 'secret'\n"]
)
def test_a_bad_key_of_a_file_is_told_by_its_place(tmp_path, monkeypatch, text):
    path = tmp_path / "sandmill.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("SANDMILL_CONFIG", str(path))
    values = (
        {"secret_key": SecretStr("x" * 40)}
        if "secret_key" in text
        else {"server_api_key": SecretStr("secret")}
    )
    with pytest.raises(SettingError, match=rf"^{path}, line 2: \[[a-z]+\] [a-z_]+_key: must "):
        check_keys(settings(**values))


def test_warnings_of_the_file_are_on_stderr_and_the_program_goes_on(tmp_path):
    path = tmp_path / "sandmill.toml"
    path.write_text("[server]\nthread_pool_size = 9\napi_key = 'short'\n", encoding="utf-8")
    path.chmod(0o600)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from core.secret_rules import program_settings as p; print(p('x').server_api_key)",
        ],
        env={**os.environ, **SOUND, "SANDMILL_CONFIG": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "**********\n")
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"x: {path}: [server] thread_pool_size is without effect: ")
    assert lines[1:] == [
        f"x: {path}, line 3: [server] api_key: is short enough to be guessed: make one by `openssl rand -hex 24`"
    ]
