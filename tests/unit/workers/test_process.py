from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError

from core.config import Settings
from runtimes.docker import DockerConfig
from runtimes.fake import FakeRuntime
from runtimes.node import docker_options
from workers import process


class Node:
    """Starts when the database has come back."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.is_started = False

    def start(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OperationalError("SELECT 1", {}, Exception("connection refused"))
        self.is_started = True


def test_worker_waits_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch):
    pauses = []
    monkeypatch.setattr(process.time, "sleep", pauses.append)
    node = Node(failures=3)
    process._start_when_possible(node)
    assert node.is_started
    assert pauses == [0.2, 0.4, 0.8]


def test_worker_that_cannot_start_ends_instead_of_idling(monkeypatch: pytest.MonkeyPatch):
    class Broken(Node):
        def start(self) -> None:
            raise RuntimeError("boom")

    class Exited(BaseException):
        pass

    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(process.os, "_exit", leave)
    with pytest.raises(Exited, match="1"):
        process._start_when_possible(Broken(0))


def test_settings_of_the_docker_runtime_reach_its_config():
    settings = Settings(
        database_url=SecretStr("postgresql://h/d"),
        redis_url=SecretStr("redis://h"),
        docker_oci_runtime="runsc",
    )
    options = docker_options(settings)
    assert (options["oci_runtime"], options["pull"]) == ("runsc", True)


def test_every_setting_of_the_docker_runtime_is_one_of_its_config_and_the_other_way_round():
    settings = Settings(database_url=SecretStr("postgresql://h/d"), redis_url=SecretStr("redis://h"))
    # The engine is named by DOCKER_HOST, the folders follow from the home.
    ours = set(DockerConfig.model_fields) - {"type", "base_url", "bundle_dir", "state_dir"}
    assert set(docker_options(settings)) == ours
    DockerConfig(bundle_dir=Path("/b"), state_dir=Path("/s"), **docker_options(settings))


class WeakRuntime(FakeRuntime):
    """On a host that lets it enforce less than it should."""

    def limitations(self) -> list[str]:
        return ["CPU time is not limited at all: run as root"]


@pytest.mark.parametrize(("runtime", "expected"), [(WeakRuntime, 1), (FakeRuntime, 0)], ids=["weak", "sound"])
def test_what_a_runtime_cannot_enforce_is_logged_once_at_the_start(monkeypatch, tmp_path, runtime, expected):
    monkeypatch.setattr(process, "node_runtimes", lambda _settings: {"fake": runtime()})
    settings = Settings(
        database_url=SecretStr("postgresql://h/d"),
        redis_url=SecretStr("redis://h"),
        home=tmp_path,
        runtimes=("fake",),
    )
    lines = []
    recorder = SimpleNamespace(warning=lambda event, **fields: lines.append((event, fields)))
    monkeypatch.setattr(process, "log", recorder)
    process.build_runtimes(settings)
    told = ("runtime_has_limitations", {"runtime": "fake", "limitations": WeakRuntime().limitations()})
    assert lines == [told] * expected
