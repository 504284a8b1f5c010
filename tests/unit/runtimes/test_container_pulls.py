import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import CreateTimeoutError, RegistryAuthError
from runtimes import container_pulls
from runtimes.base import ImageAuth
from runtimes.container_pulls import PullProgress, Pulls
from runtimes.deadline import Deadline
from tests.support.execd import wait_for


def test_progress_is_told_in_layers_and_megabytes():
    progress = PullProgress("app")
    assert str(progress) == "pulling app"
    for line in (
        {"status": "Pulling from team/app", "id": "latest"},
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Waiting", "id": "b"},
        {"status": "Already exists", "id": "c"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 10_000_000, "total": 50_000_000}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 30_000_000, "total": 70_000_000}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 30_000_000}},
        {"status": 7, "id": "b"},
        {"status": "Digest: sha256:1"},
    ):
        progress.take(line)
    assert str(progress) == "pulling app: 1 of 3 layers, 40 MB of 120 MB"
    progress.take({"status": "Download complete", "id": "b"})
    progress.take({"status": "Extracting", "id": "b", "progressDetail": {"current": 1, "total": 70_000_000}})
    assert str(progress) == "pulling app: 1 of 3 layers, 80 MB of 120 MB"
    progress.take({"status": "Pull complete", "id": "b"})
    assert str(progress) == "pulling app: 2 of 3 layers, 80 MB of 120 MB"


class Registry:
    """Fetches when it is told to."""

    def __init__(self, error=None):
        self.calls, self.go, self.error, self.left = [], threading.Event(), error, threading.Event()

    def fetch(self, image, auth, progress, is_left):
        self.calls.append((image, auth))
        progress.take({"status": "Pulling fs layer", "id": "a"})
        while not self.go.wait(0.005):
            if is_left():
                self.left.set()
                return
        if self.error:
            raise self.error


def pull(pulls, *, image="app", auth=None, seconds=10.0, say=lambda _: None):
    pulls.pull(image, auth, Deadline(seconds), say)


def test_all_who_wait_share_one_pull_and_its_outcome():
    registry = Registry(RegistryAuthError("no"))
    pulls = Pulls(registry.fetch)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(pull, pulls) for _ in range(3)]
        wait_for(lambda: pulls.waiting("app") == 3, seconds=10)
        registry.go.set()
        for one in waiting:
            with pytest.raises(RegistryAuthError):
                one.result()
    assert len(registry.calls) == 1


def test_other_credentials_are_another_pull():
    registry = Registry()
    pulls = Pulls(registry.fetch)
    auths = [None, ImageAuth("me", "1"), ImageAuth("me", "2"), ImageAuth("me1", "")]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(pull, pulls, auth=auth) for auth in auths]
        wait_for(lambda: pulls.waiting("app") == 4, seconds=10)
        registry.go.set()
        for one in waiting:
            one.result()
    assert len(registry.calls) == 4


def test_pull_goes_on_for_others_when_one_gives_up():
    registry = Registry()
    pulls = Pulls(registry.fetch)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(pull, pulls)
        wait_for(lambda: pulls.waiting("app") == 1, seconds=10)
        with pytest.raises(
            CreateTimeoutError, match=r"not pulled within 0\.05 s \(pulling app: 0 of 1 layers\)"
        ):
            pull(pulls, seconds=0.05)
        registry.go.set()
        patient.result()
    assert len(registry.calls) == 1


def test_pull_nobody_waits_for_any_more_ends():
    registry = Registry()
    with pytest.raises(CreateTimeoutError):
        pull(Pulls(registry.fetch), seconds=0.05)
    assert registry.left.wait(10)


def test_next_create_after_a_pull_pulls_anew():
    registry = Registry()
    registry.go.set()
    pulls = Pulls(registry.fetch)
    pull(pulls)
    pull(pulls)
    assert len(registry.calls) == 2


def test_those_who_wait_are_told_how_far_it_is():
    registry, told = Registry(), []
    pulls = Pulls(registry.fetch)

    def say(text):
        told.append(text)
        registry.go.set()

    pull(pulls, say=say)
    assert told == ["pulling app: 0 of 1 layers"]


def test_pull_that_stands_still_is_told_again(monkeypatch):
    """Who hears of it takes two a second, and the first ones come closer together."""
    monkeypatch.setattr(container_pulls, "_TELL_SECONDS", 0.01)
    monkeypatch.setattr(container_pulls, "_REPEAT_SECONDS", 0.02)
    registry, told = Registry(), []

    def say(text):
        told.append(text)
        if len(told) == 3:
            registry.go.set()

    pull(Pulls(registry.fetch), say=say)
    assert told[:3] == ["pulling app: 0 of 1 layers"] * 3
