"""No program starts with stores that ask for no password, or with secrets that everybody knows (threat model, T94)."""

import os
import subprocess
import sys

import pytest

from core.errors import SettingError
from core.secret_rules import check_store_url

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
        ("scheduler", "DATABASE_URL", "postgresql://sandmill@127.0.0.1:1/d"),
        ("worker", "REDIS_URL", "redis://127.0.0.1:1/0"),
        ("celery", "REDIS_URL", "redis://127.0.0.1:1/0"),
    ],
)
def test_every_program_refuses_to_start_and_names_the_setting(program, name, value):
    kept = {key: text for key, text in os.environ.items() if not key.startswith("SANDMILL_")}
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
