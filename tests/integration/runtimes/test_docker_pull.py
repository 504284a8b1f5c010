"""Pulls through the engine: credentials, progress, one at a time, and refusals told apart."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from core.errors import (
    CreateTimeoutError,
    ImageNotFoundError,
    RegistryAuthError,
    RegistryUnreachableError,
)
from runtimes import deadline
from runtimes.base import ImageAuth
from runtimes.container_start import ContainerStart
from tests.support.images import BUSYBOX_IMAGE, derived_image
from tests.support.real_registry import PASSWORD, USER, needs_registry, running_registry
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import START_SECONDS, docker_kind

pytestmark = [pytest.mark.docker, needs_registry]

AUTH = ImageAuth(USER, PASSWORD)


@pytest.fixture(scope="module")
def kind(runtime_folder):
    for made in kind_named("docker", runtime_folder):
        del made
        with docker_kind(runtime_folder, pull=True) as pulling:
            yield pulling


def docker(*arguments, folder):
    done = subprocess.run(
        ["docker", "--config", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.fixture(scope="module")
def pushed(tmp_path_factory, kind):
    """A function that gives the name of an image in a registry with a password, and not in the engine."""
    del kind
    folder = tmp_path_factory.mktemp("registry")
    config = folder / "docker"
    with running_registry(folder / "registry", with_password=True) as address:
        docker("login", "--username", USER, "--password", PASSWORD, address, folder=config)
        count = iter(range(100))

        def push():
            name = f"{address}/team/app:{next(count)}"
            with derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", files={"own": name.encode()}) as image:
                docker("tag", image, name, folder=config)
                docker("push", name, folder=config)
                docker("rmi", name, folder=config)
            return name

        yield push


@pytest.fixture
def image(pushed, tmp_path):
    name = pushed()
    yield name
    subprocess.run(["docker", "rmi", "--force", name], check=False, capture_output=True, timeout=60)


def create(kind, **changes):
    told = []
    spec = kind.spec(**changes)
    handle = kind.runtime.create(spec, timeout_seconds=START_SECONDS, on_progress=told.append)
    kind.runtime.remove(handle)
    return told


def test_private_image_is_pulled_with_the_sandboxes_credentials(kind, image):
    told = create(kind, image=image, image_auth=AUTH)
    assert told[0] == f"pulling {image}"
    assert told[-1] == "starting the container"
    # By now it is here.
    assert create(kind, image=image) == ["starting the container"]


@pytest.mark.parametrize("auth", [None, ImageAuth(USER, "wrong-password")], ids=["none", "wrong"])
def test_refused_credentials_are_told_and_not_shown(kind, image, auth):
    with pytest.raises(RegistryAuthError, match="registry auth failed") as caught:
        create(kind, image=image, image_auth=auth)
    assert image in caught.value.message
    assert "wrong-password" not in caught.value.message


def test_missing_image_of_a_registry_is_not_found(kind, image):
    missing = image.rpartition(":")[0] + ":none"
    with pytest.raises(ImageNotFoundError, match="none"):
        create(kind, image=missing, image_auth=AUTH)


def test_registry_that_is_down_is_told(kind):
    with pytest.raises(RegistryUnreachableError, match=r"127\.0\.0\.1:1/app") as caught:
        create(kind, image="127.0.0.1:1/app")
    assert caught.value.retryable


def test_policy_of_a_sandbox_goes_before_the_nodes(kind, image):
    with pytest.raises(ImageNotFoundError, match="not pulled"):
        create(kind, image=image, image_auth=AUTH, pull="never")
    create(kind, image=image, image_auth=AUTH)
    # Asked anew, the registry says who may have it.
    with pytest.raises(RegistryAuthError):
        create(kind, image=image, pull="always")
    create(kind, image=image, image_auth=AUTH, pull="always")


def test_creates_of_one_image_share_one_pull(kind, image, monkeypatch):
    fetched, everybody = [], threading.Event()
    fetch = kind.runtime._fetch

    def slow(*arguments):
        fetched.append(arguments[0])
        everybody.wait(5)
        fetch(*arguments)

    monkeypatch.setattr(kind.runtime._pulls, "_fetch", slow)
    with ThreadPoolExecutor(3) as pool:
        creates = [pool.submit(create, kind, image=image, image_auth=AUTH) for _ in range(3)]
        while kind.runtime._pulls.waiting(image) < 3:
            everybody.wait(0.01)
        everybody.set()
        for each in creates:
            each.result()
    assert fetched == [image]


def test_time_to_be_ready_begins_when_the_image_is_there(kind, image, monkeypatch):
    """B-139: a pull takes as long as it takes, up to the whole; what comes after it has its own time."""
    passed = 0.0
    clock, fetch, work = time.monotonic, kind.runtime._fetch, ContainerStart.run

    def slow(*arguments):
        nonlocal passed
        passed += 1000
        fetch(*arguments)

    def stuck(*arguments, **options):
        nonlocal passed
        passed += 100
        return work(*arguments, **options)

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock() + passed))
    monkeypatch.setattr(kind.runtime._pulls, "_fetch", slow)
    spec = kind.spec(image=image, image_auth=AUTH, ready_seconds=60.0)
    kind.runtime.remove(kind.runtime.create(spec, timeout_seconds=2000))
    monkeypatch.setattr(ContainerStart, "run", stuck)
    with pytest.raises(CreateTimeoutError, match="60 s"):
        kind.runtime.create(replace(spec, name=kind.spec().name, pull="always"), timeout_seconds=2000)


def test_credentials_are_nowhere_in_the_container(kind, image):
    with kind.box(image=image, image_auth=AUTH) as box:
        described = subprocess.run(
            ["docker", "inspect", box.handle.ref], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    assert PASSWORD not in described
