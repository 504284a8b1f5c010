import socket
from pathlib import Path
from typing import Any

import pytest

from core.config import Settings
from launcher.config import LauncherSettings
from launcher.ports import LOOPBACK, find_free_port
from launcher.stack import Stack, stack_config


def settings(**values: Any) -> Settings:
    return Settings(database_url="postgresql:", redis_url="redis:", **values)


def config(launcher: dict[str, Any], programs: dict[str, Any]):
    return stack_config(LauncherSettings(home=Path("/h"), **launcher), settings(**programs))


@pytest.fixture
def usual(monkeypatch):
    """Make another port the usual one: the real one may be taken here."""
    port = find_free_port()
    monkeypatch.setattr(Settings.model_fields["ingress_port"], "default", port)
    return port


def test_the_ingress_listens_where_the_api_does_unless_it_is_told():
    assert Stack(config({"api_host": "10.0.0.1"}, {}))._ingress_host == "10.0.0.1"
    told = config({"api_host": "10.0.0.1"}, {"ingress_host": "127.0.0.1"})
    assert Stack(told)._ingress_host == "127.0.0.1"


def test_a_port_that_is_set_is_taken_even_if_it_is_the_usual_one(usual):
    assert Stack(config({"api_port": 0}, {"ingress_port": usual}))._choose_ingress_port() == usual
    assert Stack(config({"api_port": 8080}, {"ingress_port": 0}))._choose_ingress_port() == 0


def test_the_usual_port_is_taken_if_it_is_free_and_there_is_one_copy(usual):
    one, several = Stack(config({"api_port": 8080}, {})), Stack(config({"api_port": 0}, {}))
    assert (one._choose_ingress_port(), several._choose_ingress_port()) == (usual, 0)
    with socket.create_server((LOOPBACK, usual)):
        assert one._choose_ingress_port() == 0


def test_the_key_of_the_home_is_taken_if_the_settings_have_none():
    assert not config({}, {}).has_secret_key
    assert config({}, {"secret_key": "0123456789abcdefghijklmnopqrstuv"}).has_secret_key


def test_options_of_the_api_come_from_the_settings():
    assert "--backlog" in config({}, {}).api_options
    assert "77" in config({}, {"api_backlog": 77}).api_options
