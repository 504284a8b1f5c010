import os
from collections.abc import Iterator

import pytest

from tests.support.compose import Project, build_images, compose_variables, docker, running_project
from tests.support.images import docker_problem


@pytest.fixture(scope="session")
def built_images() -> None:
    """The server's image and those of its stores, in the engine."""
    problem = docker_problem()
    if problem and os.environ.get("CI") == "true":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)
    build_images()


@pytest.fixture(scope="module")
def project(built_images: None) -> Iterator[Project]:
    """Everything of docker-compose.yml, healthy. An error here in the end means that `down` left something."""
    with running_project(compose_variables()) as running:
        assert len(running.containers()) == 8
        yield running
    label = f"label=com.docker.compose.project={running.name}"
    for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        assert docker(*kind, "--quiet", "--filter", label) == ""
