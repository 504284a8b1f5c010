import os
import subprocess
import sys
from typing import get_args

import pytest

from core.config import RuntimeName, Settings
from core.environment import read_settings, variable_name
from core.errors import SettingError
from runtimes.registry import RUNTIME_NAMES

URLS = {"DATABASE_URL": "postgresql://h/d", "REDIS_URL": "redis://h"}


@pytest.fixture(autouse=True)
def urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SANDMILL_") and name != "SANDMILL_CONFIG"]:
        monkeypatch.delenv(name)
    for name, value in URLS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("WORKER_SLOTS", "abc", "a whole number from 1 to 128, not 'abc'"),
        ("WORKER_SLOTS", "129", "a whole number from 1 to 128, not '129'"),
        ("WORKER_SLOTS", "", "a whole number from 1 to 128, not ''"),
        ("WORKER_CPU_MILLICORES", "99", "a whole number, at least 100, not '99'"),
        ("LEASE_SECONDS", "inf", "a number, more than 0, not 'inf'"),
        ("TICK_SECONDS", "x", "a number, more than 0 and at most 10, not 'x'"),
        ("LOG_LEVEL", "loud", "debug, info, warning or error, not 'loud'"),
        ("LOCAL_DISK", "x" * 100, f"memory or file, not '{'x' * 59}…"),
        ("CELERY_TASK_EVENTS", "perhaps", "true or false, not 'perhaps'"),
        ("RUNTIME", "dokcer", "local, docker or fake, not 'dokcer'"),
    ],
)
def test_wrong_value_is_one_line_with_the_variable_and_what_it_may_be(monkeypatch, name, value, wanted):
    monkeypatch.setenv(f"SANDMILL_{name}", value)
    with pytest.raises(SettingError) as caught:
        read_settings(Settings)
    assert caught.value.message == f"SANDMILL_{name}: must be {wanted}"


@pytest.mark.parametrize("value", ["local", "[", '"local"', "[]", '["dokcer"]', "7", "null", ""])
def test_wrong_list_is_told_with_an_example(monkeypatch, value):
    monkeypatch.setenv("SANDMILL_RUNTIMES", value)
    wanted = r'^SANDMILL_RUNTIMES: must be a JSON list of local, docker or fake, such as \["local", "docker"\], not '
    with pytest.raises(SettingError, match=wanted):
        read_settings(Settings)


@pytest.mark.parametrize("name", URLS)
def test_missing_variable_is_told_with_its_form(monkeypatch, name):
    monkeypatch.delenv(name)
    with pytest.raises(SettingError, match=rf"^{name}: must be set \({URLS[name].partition('h')[0]}"):
        read_settings(Settings)


def test_value_of_a_secret_is_never_quoted():
    with pytest.raises(SettingError) as caught:
        read_settings(Settings, database_url=["hunter2"])
    assert caught.value.message == "DATABASE_URL: must be text"


def test_every_setting_that_can_be_wrong_is_told_by_its_variable(monkeypatch):
    free = {"home", "database_url", "redis_url", "secret_key", "api_host", "metrics_host", "ingress_host"}
    free.add("server_api_key")
    for field_name, field in Settings.model_fields.items():
        if field_name in free:
            continue
        variable = variable_name(field_name, field)
        monkeypatch.setenv(variable, "\x01nonsense")
        with pytest.raises(SettingError, match=rf"^{variable}: must be .*nonsense'$"):
            read_settings(Settings)
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("value", ['["srv"]', '["/srv/../etc"]', "[7]", "/srv"])
def test_host_paths_are_a_list_of_absolute_folders(monkeypatch, value):
    monkeypatch.setenv("SANDMILL_DOCKER_ALLOWED_HOST_PATHS", value)
    wanted = (
        r'^SANDMILL_DOCKER_ALLOWED_HOST_PATHS: must be a JSON list of text, such as \["/srv/datasets"\], not '
    )
    with pytest.raises(SettingError, match=wanted):
        read_settings(Settings)


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, "127.0.0.1:28888"),
        ({"ingress_host": "0.0.0.0", "ingress_port": 9}, "127.0.0.1:9"),
        ({"ingress_host": "::", "ingress_port": 9}, "127.0.0.1:9"),
        ({"ingress_host": "10.1.2.3"}, "10.1.2.3:28888"),
        ({"ingress_host": "fd00::1"}, "[fd00::1]:28888"),
        ({"ingress_address": "boxes.example.org", "ingress_port": 9}, "boxes.example.org:9"),
        ({"ingress_address": "boxes.example.org:80"}, "boxes.example.org:80"),
        ({"ingress_address": "[fd00::2]"}, "[fd00::2]:28888"),
        ({"ingress_address": "[fd00::2]:81"}, "[fd00::2]:81"),
    ],
)
def test_clients_are_told_an_address_with_a_port_for_the_ingress(values, address):
    assert read_settings(Settings, **values).ingress_clients_address == address


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({}, "http://127.0.0.1:28888"),
        ({"ingress_address": "boxes.example.org"}, "http://boxes.example.org:28888"),
        (
            {"ingress_address": "boxes.example.org", "ingress_internal_address": "ingress"},
            "http://ingress:28888",
        ),
        ({"ingress_internal_address": "[fd00::2]:81"}, "http://[fd00::2]:81"),
    ],
)
def test_the_api_reaches_the_ingress_as_clients_do_unless_it_is_told(values, url):
    assert read_settings(Settings, **values).ingress_url == url


@pytest.mark.parametrize("value", ["http://a", "a:b", "a/b", "fd00::1", "", "a:123456"])
def test_address_of_the_ingress_is_a_host_or_host_and_port(value):
    with pytest.raises(
        SettingError, match=r"^SANDMILL_INGRESS_ADDRESS: must be text such as [a-z.:0-9]+, not "
    ):
        read_settings(Settings, ingress_address=value)


@pytest.mark.parametrize("value", ["10.0.0.0/8", '["10.0.0.1/8"]', '["example.org"]', "[8]"])
def test_networks_are_a_list_of_cidr(monkeypatch, value):
    monkeypatch.setenv("SANDMILL_WEBHOOK_ALLOWED_NETWORKS", value)
    with pytest.raises(
        SettingError, match=r"^SANDMILL_WEBHOOK_ALLOWED_NETWORKS: must be a JSON list of text"
    ):
        read_settings(Settings)


def test_key_that_is_too_short_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("SANDMILL_SECRET_KEY", "short")
    with pytest.raises(SettingError) as caught:
        read_settings(Settings)
    assert caught.value.message == "SANDMILL_SECRET_KEY: must be text of at least 32 characters"


def test_runtimes_that_may_be_set_are_those_there_are():
    assert set(get_args(RuntimeName)) == set(RUNTIME_NAMES)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["-m", "scheduler"], "scheduler"),
        (["-m", "workers"], "worker"),
        (["-c", "import workers.app"], "celery"),
        (["-c", "from api.app import create_app; create_app()"], "api"),
    ],
)
def test_program_started_alone_ends_with_that_line(words, program):
    env = {**os.environ, "SANDMILL_WORKER_SLOTS": "abc"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, timeout=30, check=False
    )
    line = f"{program}: SANDMILL_WORKER_SLOTS: must be a whole number from 1 to 128, not 'abc'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
